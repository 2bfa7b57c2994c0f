"""Devices across a network: the device protocol over a WebSocket (docs/protocol.md, docs/remote.md).

Modules: channel (frames over a WebSocket), device (the client's side), agent (the serving side), guard (what the
agent lets in), inbox (what has arrived and waits). Everything but channel imports the extra ``remote`` when used.
"""
