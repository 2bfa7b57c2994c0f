// Encoded modules by digest: parts are put together, checked, and kept for the next load, over reconnections too.
// The least recently used go first. Holds nothing that a device has compiled.

import { usage } from "./errors.js";

export class ModuleStore {
  #modules = new Map();
  #uploads = new Map();
  #bytes = 0;

  /** @param {number} capacity bytes kept; the newest module stays in any case */
  constructor(capacity = 128 << 20) {
    this.capacity = capacity;
  }

  /** Of what is complete, at most the 256 most recently used. */
  digests() {
    return [...this.#modules.keys()].slice(-256);
  }

  get(digest) {
    const encoded = this.#modules.get(digest);
    if (encoded !== undefined) {
      this.#modules.delete(digest);
      this.#modules.set(digest, encoded);
    }
    return encoded;
  }

  /** Take one part. A usage error when it does not continue what came before, or the whole is not the digest's. */
  async addPart(digest, nbytes, offset, part, limit) {
    if (offset === 0) {
      this.#uploads.delete(digest);
      this.#checkRoom(digest, nbytes, limit);
      this.#uploads.set(digest, { data: new Uint8Array(nbytes), filled: 0 });
    }
    const upload = this.#uploads.get(digest);
    const fits = upload !== undefined && upload.data.length === nbytes && offset === upload.filled;
    if (!fits || !part.length || offset + part.length > nbytes) {
      this.#uploads.delete(digest);
      throw usage(
        `a part of module ${digest.slice(0, 12)} does not fit: bytes ${offset} to ${offset + part.length} of ` +
          `${nbytes}, after ${upload?.filled ?? 0} of ${upload?.data.length ?? 0}`,
      );
    }
    upload.data.set(part, offset);
    upload.filled += part.length;
    if (upload.filled === nbytes) {
      this.#uploads.delete(digest);
      await this.#finish(digest, upload.data);
    }
  }

  #checkRoom(digest, nbytes, limit) {
    let pending = 0;
    for (const { data } of this.#uploads.values()) pending += data.length;
    if (nbytes + pending > limit) {
      throw usage(
        `module ${digest.slice(0, 12)} has ${nbytes} bytes and ${pending} are being uploaded; the limit is ${limit}`,
      );
    }
  }

  async #finish(digest, encoded) {
    const actual = await sha256(encoded);
    if (actual !== digest) {
      throw usage(`a module declared as ${digest.slice(0, 12)} has the content of ${actual.slice(0, 12)}`);
    }
    if (this.#modules.has(digest)) return;
    this.#modules.set(digest, encoded);
    this.#bytes += encoded.length;
    for (const [oldest, bytes] of this.#modules) {
      if (this.#bytes <= this.capacity || oldest === digest) break;
      this.#modules.delete(oldest);
      this.#bytes -= bytes.length;
    }
  }
}

/** SHA-256 as 64 hexadecimal digits. */
export async function sha256(bytes) {
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
