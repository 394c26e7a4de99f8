// What is looked at: a weight, some threads, a window of time, a direction. All figures of the page come from here.

// A text pattern: a glob if it has * or ? in it, else a part of the name. Upper and lower case are the same.
function globOrPart(pattern) {
  const escaped = pattern.replace(/[.+^${}()|[\]\\*?]/g, "\\$&");
  const glob = /[*?]/.test(pattern);
  return new RegExp(glob ? "^" + escaped.replace(/\\\*/g, ".*").replace(/\\\?/g, ".") + "$" : escaped, "isu");
}

class View {
  // threads: Set of indices into profile.threads, or null for all (and for nodes below no thread).
  // range: [first bucket, one past the last], or null for all of the time.
  constructor(profile, { weight, threads, range, inverted, merged }) {
    Object.assign(this, { profile, weight, threads, range, inverted, merged });
    this.self = this.selfWeights();
    this.total = this.self.slice();
    const { parent } = profile;
    for (let i = profile.size - 1; i > 0; i--) this.total[parent[i]] += this.total[i];
    this.sum = profile.size ? this.total[0] : 0;
    this.root = new ViewNode(this, null, -1, [0], null, this.sum);
  }

  selfWeights() {
    const { profile, weight, range, threads } = this;
    const self = weight === null ? new Float64Array(profile.size) : timeSelf(profile, weight, range);
    if (threads) {
      for (let i = 0; i < self.length; i++) if (!threads.has(profile.threadOf[i])) self[i] = 0;
    }
    return self;
  }

  // Weight of the stacks that hold a match: each counted once, however many of its frames match.
  // Returns it for the whole view and for what lies below `zoom`.
  matched(mask, zoom) {
    const { parent, frame, size } = this.profile;
    const hit = new Uint8Array(size), below = new Uint8Array(size);
    let all = 0, inside = 0;
    if (!zoom.origins) for (const node of zoom.nodes) below[node] = 1;
    for (let i = 0; i < size; i++) {
      if (i) {
        hit[i] = hit[parent[i]] | mask[frame[i]];
        below[i] |= below[parent[i]];
      }
      if (hit[i]) {
        all += this.self[i];
        if (below[i]) inside += this.self[i];
      }
    }
    if (zoom.origins) for (const node of zoom.origins) if (hit[node]) inside += this.self[node];
    return { all, inside };
  }

  // Weight by the kind of frame that it ends in.
  kindSums() {
    const { frame, kind, size } = this.profile;
    const sums = Object.fromEntries(KINDS.map((name) => [name, 0]));
    for (let i = 1; i < size; i++) if (this.self[i]) sums[kind[frame[i]]] += this.self[i];
    return sums;
  }

  // The node that the same frames lead to in this view, as far as they go.
  find(frames) {
    let node = this.root;
    for (const frame of frames) {
      const next = node.children().find((child) => child.frame === frame);
      if (!next) break;
      node = next;
    }
    return node;
  }
}

function timeSelf(profile, weight, range) {
  if (!range) return profile.weights[weight].slice();
  const self = new Float64Array(profile.size);
  const { node, bucket, weights } = profile.timeline;
  const values = weights[weight];
  if (values) {
    for (let i = 0; i < node.length; i++) {
      if (bucket[i] >= range[0] && bucket[i] < range[1]) self[node[i]] += values[i];
    }
  }
  return self;
}

// A frame in the picture. Its children are made when first asked for, so that a page with a million nodes opens at once.
// nodes: nodes of the profile that it stands for. Top-down, origins is null; inverted, it stands for stacks whose leaves
// are origins[i] and whose callers so far lead to nodes[i].
class ViewNode {
  constructor(view, parent, frame, nodes, origins, value) {
    Object.assign(this, { view, parent, frame, nodes, origins, value });
    this.depth = parent ? parent.depth + 1 : 0;
    this.list = null;
  }

  children() {
    if (!this.list) {
      const groups = this.view.inverted ? this.callers() : this.callees();
      const { label } = this.view.profile;
      this.list = [...groups].map(([frame, g]) => new ViewNode(this.view, this, frame, g.nodes, g.origins, g.value));
      this.list.sort((a, b) => b.value - a.value || (label[a.frame] < label[b.frame] ? -1 : 1));
    }
    return this.list;
  }

  callees() {
    const { profile, total, merged } = this.view;
    const groups = new Map();
    const visit = (node) => {
      for (let c = profile.firstChild[node]; c >= 0; c = profile.nextSibling[c]) {
        if (!total[c]) continue;
        const layer = profile.layer[profile.frame[c]];
        if (merged && (layer === "process" || layer === "thread")) visit(c);
        else add(groups, profile.frame[c], c, null, total[c]);
      }
    };
    for (const node of this.nodes) visit(node);
    return groups;
  }

  callers() {
    const { profile, self, merged } = this.view;
    const groups = new Map();
    if (!this.parent) {
      for (let i = 1; i < profile.size; i++) if (self[i]) add(groups, profile.frame[i], i, i, self[i]);
      return groups;
    }
    this.nodes.forEach((node, i) => {
      const caller = profile.parent[node];
      const layer = caller > 0 ? profile.layer[profile.frame[caller]] : null;
      if (caller > 0 && !(merged && (layer === "process" || layer === "thread"))) {
        add(groups, profile.frame[caller], caller, this.origins[i], self[this.origins[i]]);
      }
    });
    return groups;
  }

  get self() {
    if (this.view.inverted) return this.parent && this.parent.parent ? 0 : this.value;
    return this.nodes.reduce((sum, node) => sum + this.view.self[node], 0);
  }

  get path() {
    const path = [];
    for (let node = this; node.parent; node = node.parent) path.push(node);
    return path.reverse();
  }

  get label() {
    return this.parent ? this.view.profile.label[this.frame] : "all";
  }

  get layer() {
    return this.parent ? this.view.profile.layer[this.frame] : "process";
  }

  get kind() {
    return this.parent ? this.view.profile.kind[this.frame] : "process";
  }

  // file:line of the heaviest node it stands for
  get place() {
    if (!this.parent) return "";
    const { file, line } = this.view.profile;
    const name = file[this.frame];
    if (!name) return "";
    let best = this.nodes[0], weight = -1;
    for (const [i, node] of this.nodes.entries()) {
      const w = this.origins ? this.view.self[this.origins[i]] : this.view.total[node];
      if (w > weight && line[node] >= 0) [best, weight] = [node, w];
    }
    return line[best] >= 0 ? `${name}:${line[best]}` : name;
  }

  get module() {
    return (this.parent && this.view.profile.module[this.frame]) || "";
  }
}

function add(groups, frame, node, origin, value) {
  let group = groups.get(frame);
  if (!group) groups.set(frame, (group = { nodes: [], origins: origin === null ? null : [], value: 0 }));
  group.nodes.push(node);
  if (origin !== null) group.origins.push(origin);
  group.value += value;
}

// Frames that a search finds. text: part of a name, or a regular expression. Looks at function, file and module.
// Returns null for no search; throws SyntaxError for a broken expression.
function searchMask(profile, text, regex) {
  if (!text) return null;
  const pattern = new RegExp(regex ? text : text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "iu");
  const names = [profile.label, profile.rawLabel, profile.file, profile.module];
  return Uint8Array.from(profile.layer, (_, i) => (names.some((n) => n[i] && pattern.test(n[i])) ? 1 : 0));
}
