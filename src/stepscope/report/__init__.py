"""Renderings of the account: terminal text, JSON, HTML, timelines. Nothing is computed here that another
rendering would need too.
"""
