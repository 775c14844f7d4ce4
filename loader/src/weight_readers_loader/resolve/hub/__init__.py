# SPDX-License-Identifier: Apache-2.0
"""Repositories of models on the Hugging Face Hub: listed first, then only the chosen files are downloaded.

Decided in docs/decisions/0014. huggingface_hub does all talking and all downloading; it is imported when a reference
leads there (extra ``hub``).
"""
