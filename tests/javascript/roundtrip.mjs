// Reads values as MessagePack from standard input, four bytes of length before each, and writes them encoded anew.
import { decode, encode } from "../../src/tapestry/runtime/browser/static/messagepack.js";

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const input = Buffer.concat(chunks);
for (let place = 0; place < input.length; ) {
  const length = input.readUInt32LE(place);
  const encoded = encode(decode(new Uint8Array(input.subarray(place + 4, place + 4 + length))));
  const head = Buffer.alloc(4);
  head.writeUInt32LE(encoded.length);
  process.stdout.write(head);
  process.stdout.write(encoded);
  place += 4 + length;
}
