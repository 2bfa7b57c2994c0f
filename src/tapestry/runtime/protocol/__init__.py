"""The wire protocol between a client and whatever serves a device: a worker, a remote agent, a browser tab.

See docs/protocol.md. Modules: framing (bytes and frames), messages (headers); session and store (the serving side);
client, asking, contents and wire (the calling side).
"""
