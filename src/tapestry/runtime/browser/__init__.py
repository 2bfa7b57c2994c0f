"""A browser tab as a device: the page in static/ speaks the device protocol (docs/protocol.md, docs/browser.md).

Modules: device (the client's side), host (serves the page, lets tabs in), pages (what is served), chromium (a browser
of our own). The serving side of the protocol is the page's JavaScript.
"""
