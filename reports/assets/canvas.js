// Drawing: only frames at least half a pixel wide, only rows in sight.

const ROW = 20, MIN_WIDTH = 0.5, FONT = '12px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';
const segmenter = new Intl.Segmenter();

class Flame {
  constructor(canvas, scroller, spacer) {
    Object.assign(this, { canvas, scroller, spacer });
    this.context = canvas.getContext("2d");
    this.rects = [];
    this.rows = 1;
    this.upward = false;
    this.mask = null;
    this.focus = null;
    this.hover = null;
    this.readTheme();
    scroller.addEventListener("scroll", () => this.draw());
  }

  readTheme() {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue("--" + name).trim();
    // Four shades of each, so that neighbours are told apart; processes, threads and states have one.
    const shades = (kind, base) => [0, 1, 2, 3].map((i) => /^(state|process|thread)/.test(kind) ? base
      : `color-mix(in oklab, ${base} ${100 - 7 * i}%, ${color("shade")})`);
    this.colors = Object.fromEntries(KINDS.map((kind) => [kind, shades(kind, color(kind))]));
    this.theme = Object.fromEntries(["ink", "ink-soft", "match", "rest", "stripe"].map((n) => [n, color(n)]));
  }

  // Lays out everything below `zoom`, its callers as full rows before it.
  layout(zoom) {
    this.zoom = zoom;
    const width = this.scroller.clientWidth;
    const rects = [];
    for (const node of [...(zoom.parent ? [zoom.view.root] : []), ...zoom.path.slice(0, -1)]) {
      rects.push({ node, x: 0, w: width, row: node.depth, faded: true });
    }
    let rows = zoom.depth + 1;
    const pending = zoom.value > 0 || !zoom.parent ? [{ node: zoom, x: 0, w: width, row: zoom.depth }] : [];
    while (pending.length) {
      const rect = pending.pop();
      rects.push(rect);
      rows = Math.max(rows, rect.row + 1);
      const { node, row } = rect;
      let x = rect.x;
      const children = node.value > 0 ? node.children() : [];
      for (let i = 0; i < children.length; i++) {
        const child = children[i];
        const w = (rect.w * child.value) / node.value;
        if (w < MIN_WIDTH) {
          const value = children.slice(i).reduce((sum, c) => sum + c.value, 0);
          const rest = (rect.w * value) / node.value;
          if (rest >= MIN_WIDTH) {
            rects.push({ node: null, owner: node, count: children.length - i, value, x, w: rest, row: row + 1 });
            rows = Math.max(rows, row + 2);
          }
          break;
        }
        pending.push({ node: child, x, w, row: row + 1 });
        x += w;
      }
    }
    this.rects = rects;
    this.byRow = Array.from({ length: rows }, () => []);
    for (const rect of rects) this.byRow[rect.row].push(rect);
    for (const row of this.byRow) row.sort((a, b) => a.x - b.x);
    this.rows = rows;
    this.resize();
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.scroller;
    const ratio = window.devicePixelRatio || 1;
    this.spacer.style.height = Math.max(0, this.rows * ROW - height) + "px";
    this.canvas.style.width = width + "px";
    this.canvas.style.height = height + "px";
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.draw();
  }

  rowTop(row) {
    const height = Math.max(this.rows * ROW, this.scroller.clientHeight);
    return (this.upward ? height - (row + 1) * ROW : row * ROW) - this.scroller.scrollTop;
  }

  rowAt(y) {
    const height = Math.max(this.rows * ROW, this.scroller.clientHeight);
    const at = y + this.scroller.scrollTop;
    return Math.floor((this.upward ? height - at : at) / ROW);
  }

  draw() {
    const { context: c, theme } = this;
    const ratio = window.devicePixelRatio || 1;
    const width = this.canvas.width / ratio, height = this.canvas.height / ratio;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, width, height);
    c.font = FONT;
    c.textBaseline = "middle";
    c.direction = "ltr";
    this.charWidth = c.measureText("M").width;
    this.drawn = 0;
    (this.byRow || []).forEach((rects, row) => {
      const y = this.rowTop(row);
      if (y + ROW < 0 || y > height) return;
      for (const rect of rects) this.drawRect(c, rect, y);
      this.drawn += rects.length;
    });
    if (this.focus) this.outline(c, this.focus, theme.ink, 2);
    if (this.hover && this.hover !== this.focus) this.outline(c, this.hover, theme.ink, 1);
  }

  drawRect(c, rect, y) {
    const { theme } = this;
    const gap = rect.w > 3 ? 1 : 0, h = ROW - 1, w = Math.max(rect.w - gap, 0.5);
    if (!rect.node) {
      c.fillStyle = theme.rest;
      c.fillRect(rect.x, y, w, h);
      return;
    }
    const layer = rect.node.layer;
    const hit = this.mask && rect.node.parent && this.mask[rect.node.frame];
    c.globalAlpha = rect.faded ? 0.55 : this.mask && !hit ? 0.32 : 1;
    c.fillStyle = this.colors[rect.node.kind][hash(rect.node.frame)];
    c.fillRect(rect.x, y, w, h);
    if (layer === "state" && w > 6) this.hatch(c, rect.x, y, w, h);
    if (hit) {
      c.fillStyle = theme.match;
      c.fillRect(rect.x, y + h - 3, w, 3);
    }
    if (w > 22) {
      c.globalAlpha = rect.faded ? 0.8 : this.mask && !hit ? 0.6 : 1;
      c.fillStyle = layer === "process" || layer === "thread" ? theme.ink : theme["ink-soft"];
      const text = this.fit(c, rect.node, w - 9);
      if (text) c.fillText(text, rect.x + 5, y + h / 2 + 0.5);
    }
    c.globalAlpha = 1;
  }

  hatch(c, x, y, w, h) {
    c.save();
    c.beginPath();
    c.rect(x, y, w, h);
    c.clip();
    c.strokeStyle = this.theme.stripe;
    c.lineWidth = 2;
    c.beginPath();
    const from = Math.floor(x / 8) * 8;
    for (let at = from - h; at < Math.min(x + w, this.scroller.clientWidth); at += 8) {
      c.moveTo(at, y + h);
      c.lineTo(at + h, y);
    }
    c.stroke();
    c.restore();
  }

  // The rectangle of a node, if it is drawn.
  find(node) {
    return (node && this.rects.find((rect) => rect.node === node)) || null;
  }

  // Whether the room for the picture has changed since it was laid out.
  get stale() {
    const { clientWidth, clientHeight } = this.scroller;
    return this.canvas.style.width !== clientWidth + "px" || this.canvas.style.height !== clientHeight + "px";
  }

  outline(c, node, color, thickness) {
    const rect = this.find(node);
    if (!rect) return;
    const y = this.rowTop(rect.row);
    c.strokeStyle = color;
    c.lineWidth = thickness;
    c.strokeRect(rect.x + thickness / 2, y + thickness / 2, Math.max(rect.w - 1 - thickness, 1), ROW - 1 - thickness);
  }

  // As much of a name as fits. Java names lose their package first, states all but the word that matters.
  fit(c, node, space) {
    const label = node.label;
    const ascii = /^[\x20-\x7e]*$/.test(label);
    const widthOf = (text) => (ascii ? text.length * this.charWidth : c.measureText(text).width);
    if (widthOf(label) <= space) return label;
    const short = node.layer === "java" ? label.replace(/^(?:[\w$]+\.)+(?=[\w$]+\.[\w$<>]+)/, "")
      : node.layer === "state" ? label.replace(/^\[(?:waiting: )?([^,\]]*).*$/, "$1") : label;
    if (widthOf(short) <= space) return short;
    const text = node.layer === "java" ? short : label;
    if (ascii) {
      const count = Math.floor(space / this.charWidth) - 1;
      return count >= 2 ? text.slice(0, count) + "…" : "";
    }
    const parts = [...segmenter.segment(text)].map((s) => s.segment);
    let low = 0, high = parts.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (widthOf(parts.slice(0, middle).join("") + "…") <= space) low = middle;
      else high = middle - 1;
    }
    return low >= 2 ? parts.slice(0, low).join("") + "…" : "";
  }

  at(x, y) {
    const row = this.rowAt(y);
    const rects = (this.byRow && this.byRow[row]) || [];
    let low = 0, high = rects.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (x < rects[middle].x) high = middle - 1;
      else if (x >= rects[middle].x + rects[middle].w) low = middle + 1;
      else return rects[middle];
    }
    return null;
  }

  reveal(node) {
    const rect = this.find(node);
    if (!rect) return;
    const y = this.rowTop(rect.row), height = this.scroller.clientHeight;
    if (y < 0) this.scroller.scrollTop += y;
    else if (y + ROW > height) this.scroller.scrollTop += y + ROW - height;
  }
}

function hash(frame) {
  return (Math.imul(frame + 1, 0x9e3779b1) >>> 16) & 3;
}
