import assert from "node:assert/strict";
import test from "node:test";

import { HANDSHAKE_LIMITS, LIMITS, joinFrame, parseFrame } from "../../src/tapestry/runtime/browser/static/framing.js";

const header = Uint8Array.from([0x80]);

test("a frame comes back as it went", () => {
  const joined = joinFrame(header, Uint8Array.from([1, 2, 3]));
  assert.deepEqual([...joined], [1, 0, 0, 0, 3, 0, 0, 0, 0x80, 1, 2, 3]);
  const found = parseFrame(joined.buffer, LIMITS);
  assert.deepEqual([...found.header], [0x80]);
  assert.deepEqual([...found.payload], [1, 2, 3]);
});

const prefixed = (headerBytes, payloadBytes, length) => {
  const message = new Uint8Array(length);
  const view = new DataView(message.buffer);
  view.setUint32(0, headerBytes, true);
  view.setUint32(4, payloadBytes, true);
  return message.buffer;
};

for (const [what, message, limits, pattern] of [
  ["text", "hello", LIMITS, /text/],
  ["seven bytes", new ArrayBuffer(7), LIMITS, /too short/],
  ["no header", prefixed(0, 0, 8), LIMITS, /header of 0 bytes/],
  ["a header over the limit", prefixed(LIMITS.header_bytes + 1, 0, 8), LIMITS, /header of 4194305 bytes/],
  ["a payload over the limit", prefixed(1, LIMITS.payload_bytes + 1, 9), LIMITS, /payload of 8388609 bytes/],
  ["a payload before the handshake", prefixed(1, 1, 10), HANDSHAKE_LIMITS, /payload of 1 bytes/],
  ["less than it declares", prefixed(4, 4, 12), LIMITS, /declares/],
  ["more than it declares", prefixed(1, 0, 20), LIMITS, /declares/],
]) {
  test(`${what} is refused`, () => assert.throws(() => parseFrame(message, limits), pattern));
}
