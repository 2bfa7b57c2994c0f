// Frames: two lengths, a MessagePack header, a binary payload (docs/protocol.md). A WebSocket message is one frame.

import { ProtocolError } from "./errors.js";

const PREFIX_BYTES = 8;

/** Until the handshake is done: room for a hello, nothing else. */
export const HANDSHAKE_LIMITS = { header_bytes: 4096, payload_bytes: 0 };
/**
 * What this side accepts afterwards, in bytes. `module_bytes`: the largest encoded module. `window_bytes`: what a client
 * may send without waiting for an answer; a browser's WebSocket cannot slow its peer down, and what has come and is not
 * done lies in the tab's memory.
 */
export const LIMITS = {
  header_bytes: 4 << 20,
  payload_bytes: 8 << 20,
  module_bytes: 256 << 20,
  content_bytes: 0,
  window_bytes: 64 << 20,
};

/** Header and payload of one message (an ArrayBuffer), as views of its memory. ProtocolError unless all adds up. */
export function parseFrame(message, limits) {
  if (!(message instanceof ArrayBuffer)) throw new ProtocolError("expected a binary message, got text");
  if (message.byteLength < PREFIX_BYTES) {
    throw new ProtocolError(`a message of ${message.byteLength} bytes is too short for a frame`);
  }
  const view = new DataView(message);
  const header = view.getUint32(0, true);
  const payload = view.getUint32(4, true);
  if (header < 1 || header > limits.header_bytes) {
    throw new ProtocolError(`a header of ${header} bytes; expected 1 to ${limits.header_bytes}`);
  }
  if (payload > limits.payload_bytes) {
    throw new ProtocolError(`a payload of ${payload} bytes; at most ${limits.payload_bytes} are accepted`);
  }
  if (message.byteLength !== PREFIX_BYTES + header + payload) {
    throw new ProtocolError(
      `a message of ${message.byteLength} bytes declares ${header} of header and ${payload} of payload`,
    );
  }
  return {
    header: new Uint8Array(message, PREFIX_BYTES, header),
    payload: new Uint8Array(message, PREFIX_BYTES + header, payload),
  };
}

/** The bytes of a frame, as one message. */
export function joinFrame(header, payload = new Uint8Array(0)) {
  const message = new Uint8Array(PREFIX_BYTES + header.length + payload.length);
  const view = new DataView(message.buffer);
  view.setUint32(0, header.length, true);
  view.setUint32(4, payload.length, true);
  message.set(header, PREFIX_BYTES);
  message.set(payload, PREFIX_BYTES + header.length);
  return message;
}
