// The errors that travel to the client; their kinds are those of docs/protocol.md.

export class TapestryError extends Error {
  /** @param {"unsupported"|"device"|"lost"|"usage"|"environment"|"missing"} kind @param {string} message */
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

/** The peer broke the protocol: the connection is of no further use. */
export class ProtocolError extends TapestryError {
  constructor(message) {
    super("usage", message);
  }
}

export const usage = (message) => new TapestryError("usage", message);
export const unsupported = (message) => new TapestryError("unsupported", message);
export const deviceError = (message) => new TapestryError("device", message);
export const lost = (message) => new TapestryError("lost", message);

/** What an exception is to the client: a fault of ours counts as the device's error. */
export function kindOf(error) {
  return error instanceof TapestryError ? error.kind : "device";
}

const MESSAGE_CHARACTERS = 16_000;

export function textOf(error) {
  const text = error instanceof TapestryError ? error.message : `${error?.name ?? "Error"}: ${error?.message ?? error}`;
  return text.slice(0, MESSAGE_CHARACTERS);
}

/** A number for people: "1,234,567". */
export const grouped = (number) => number.toLocaleString("en-US");
