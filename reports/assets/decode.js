"use strict";
// The data block (its form is documented in reports/flame.py), decoded into a Profile.

const STATES = ["runnable", "disk", "lock", "gil", "gc", "gpu-sync", "gpu-idle", "stopped", "sleep", "other", "torn", "unsampled"];
// What frames are told apart by colour: layers, and states of layer `state`. In the order of the legend.
const KINDS = ["java", "python", "native", "kernel", "gpu", ...STATES.map((name) => "state-" + name), "process", "thread"];

async function inflate(base64) {
  const bytes = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(base64)
    : Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Values may pass 2**31, so the sums are floats; they are exact up to 2**53 ns (104 days of thread time).
function readVarints(bytes, start, out) {
  let at = start;
  for (let i = 0; i < out.length; i++) {
    let value = 0, factor = 1, byte;
    do {
      byte = bytes[at++];
      value += (byte & 127) * factor;
      factor *= 128;
    } while (byte > 127);
    out[i] = value;
  }
  return out;
}

function unzigzag(values) {
  for (let i = 0; i < values.length; i++) values[i] = values[i] % 2 ? -(values[i] + 1) / 2 : values[i] / 2;
  return values;
}

class Profile {
  constructor(bytes) {
    const size = new DataView(bytes.buffer, bytes.byteOffset, 4).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size)));
    const columns = {};
    let at = 4 + size;
    for (const [name, count, length] of header.columns) {
      const wide = name.startsWith("self:") || name.startsWith("tl:");
      columns[name] = readVarints(bytes, at, wide ? new Float64Array(count) : new Int32Array(count));
      if (wide) unzigzag(columns[name]);
      at += length;
    }
    this.title = header.title;
    this.notes = header.notes;
    this.details = header.details;
    this.weightNames = header.weights;
    this.firstWeight = header.weight;
    this.timed = new Set(header.timed);
    this.edges = header.edges_ns;
    this.layer = header.frames.map((f) => f[0]);
    this.kind = header.frames.map(([layer, label]) =>
      layer !== "state" ? layer : "state-" + (Object.hasOwn(header.states, label) ? header.states[label] : "other"));
    this.rawLabel = header.frames.map((f) => f[1]);
    this.label = this.rawLabel.map(printable);
    this.file = header.frames.map((f) => f[2] && printable(f[2]));
    this.module = header.frames.map((f) => f[3] && printable(f[3]));
    this.parent = columns.parent.map((delta, node) => node - delta);
    this.frame = columns.frame.map((f) => f - 1);
    this.line = columns.line.map((l) => l - 1);
    this.size = this.parent.length;
    this.kinds = new Set(Array.from(this.frame, (f) => this.kind[f]));
    this.readWeights(columns);
    this.linkChildren();
  }

  readWeights(columns) {
    const unpredict = (prefix) => {
      const wall = columns[prefix + "wall"];
      if (!wall) return;
      for (const name of ["cpu", "off-cpu"]) {
        const part = columns[prefix + name];
        if (part) for (let i = 0; i < wall.length; i++) wall[i] += part[i];
      }
    };
    unpredict("self:");
    unpredict("tl:");
    const node = columns.tl_node || new Int32Array(0);
    for (let i = 1; i < node.length; i++) node[i] += node[i - 1];
    this.timeline = { node, bucket: columns.tl_bucket || new Int32Array(0), weights: {} };
    this.weights = {};
    for (const name of this.weightNames) {
      const self = columns["self:" + name];
      if (this.timed.has(name)) {
        const values = columns["tl:" + name];
        for (let i = 0; i < node.length; i++) self[node[i]] += values[i];
        this.timeline.weights[name] = values;
      }
      this.weights[name] = self;
    }
  }

  linkChildren() {
    const n = this.size;
    this.firstChild = new Int32Array(n).fill(-1);
    this.nextSibling = new Int32Array(n).fill(-1);
    this.threadOf = new Int32Array(n).fill(-1);
    this.threads = [];
    for (let i = n - 1; i > 0; i--) {
      this.nextSibling[i] = this.firstChild[this.parent[i]];
      this.firstChild[this.parent[i]] = i;
    }
    for (let i = 1; i < n; i++) {
      if (this.layer[this.frame[i]] === "thread") {
        this.threadOf[i] = this.threads.length;
        this.threads.push(i);
      } else {
        this.threadOf[i] = this.threadOf[this.parent[i]];
      }
    }
  }
}

// Controls, bidirectional overrides, other format characters and lone surrogates are shown as escapes.
const HIDDEN = /(?![\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;

function printable(text) {
  return text.replace(HIDDEN, (c) => {
    const code = c.codePointAt(0), hex = code.toString(16);
    return code < 0x100 ? "\\x" + hex.padStart(2, "0")
      : code < 0x10000 ? "\\u" + hex.padStart(4, "0") : "\\U" + hex.padStart(8, "0");
  });
}

function significant(value) {
  const size = Math.abs(value);
  const digits = size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function duration(ns) {
  const size = Math.abs(ns);
  if (size >= 7.2e12) return significant(ns / 3.6e12) + " h";
  if (size >= 1.2e11) return significant(ns / 6e10) + " min";
  for (const [unit, name] of [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]]) {
    if (size >= unit) return significant(ns / unit) + " " + name;
  }
  return "0 s";
}

function amount(value, weight) {
  return weight === "samples" ? value.toLocaleString("en") + (value === 1 ? " sample" : " samples") : duration(value);
}

function percent(part, whole) {
  if (!whole) return "0 %";
  const share = (100 * part) / whole;
  return share && share < 0.1 ? "< 0.1 %" : (share >= 99.95 ? share.toFixed(0) : share.toFixed(1)) + " %";
}
