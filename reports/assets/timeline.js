// The strip above the graph: the weight over time, and the part of it that is looked at.

class Strip {
  constructor(profile, onChange) {
    Object.assign(this, { profile, onChange });
    this.buckets = Math.max(0, profile.edges.length - 1);
    this.range = null;
    this.box = document.getElementById("strip");
    this.canvas = document.getElementById("strip-canvas");
    this.handles = [document.getElementById("time-from"), document.getElementById("time-to")];
    this.clear = document.getElementById("time-clear");
    this.text = document.getElementById("time-text");
    if (!this.buckets) return;
    document.getElementById("time").hidden = false;
    this.clear.addEventListener("click", () => this.set(null));
    this.box.addEventListener("pointerdown", (event) => this.drag(event));
    this.handles.forEach((handle, side) => handle.addEventListener("keydown", (event) => this.key(event, side)));
  }

  get ends() {
    return this.range || [0, this.buckets];
  }

  set(range) {
    const whole = !range || (range[0] <= 0 && range[1] >= this.buckets);
    this.range = whole ? null : [Math.max(0, range[0]), Math.min(this.buckets, range[1])];
    this.onChange();
  }

  seconds(edge) {
    return (this.profile.edges[edge] - this.profile.edges[0]) / 1e9;
  }

  key(event, side) {
    const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 }[event.key];
    const ends = this.ends.slice();
    if (step) ends[side] += step;
    else if (event.key === "Home") ends[side] = side ? ends[0] + 1 : 0;
    else if (event.key === "End") ends[side] = side ? this.buckets : ends[1] - 1;
    else if (event.key === "Escape" && this.range) return event.stopPropagation(), this.set(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
    ends[0] = Math.max(0, Math.min(ends[0], this.buckets - 1));
    ends[1] = Math.max(1, Math.min(ends[1], this.buckets));
    if (ends[0] >= ends[1]) side ? (ends[1] = ends[0] + 1) : (ends[0] = ends[1] - 1);
    this.set(ends);
  }

  // Dragging a handle moves that end; dragging elsewhere marks a new part.
  drag(event) {
    if (event.button) return;
    const box = this.box.getBoundingClientRect();
    const position = (e) => Math.max(0, Math.min(this.buckets, ((e.clientX - box.left) / box.width) * this.buckets));
    const start = position(event), side = this.handles.indexOf(event.target);
    const fixed = side >= 0 ? this.ends[1 - side] : start;
    this.box.setPointerCapture(event.pointerId);
    const move = (e) => {
      const at = position(e);
      if (side < 0 && Math.abs(at - start) * (box.width / this.buckets) < 3) return;
      const [a, b] = side >= 0 ? [fixed, Math.round(at)] : [Math.floor(Math.min(at, start)), Math.ceil(Math.max(at, start))];
      if (a !== b) this.set([Math.min(a, b), Math.max(a, b)]);
    };
    const stop = () => {
      this.box.removeEventListener("pointermove", move);
      this.box.removeEventListener("pointerup", stop);
      this.box.removeEventListener("pointercancel", stop);
    };
    this.box.addEventListener("pointermove", move);
    this.box.addEventListener("pointerup", stop);
    this.box.addEventListener("pointercancel", stop);
    event.preventDefault();
  }

  // Sums of the view's weight: one row a kind of frame that the time ended in, one value a bucket, over the threads shown.
  sums(view) {
    const { node, bucket, weights } = this.profile.timeline, { kind, frame, threadOf } = this.profile;
    const values = weights[view.weight], { threads } = view;
    const sums = Object.fromEntries(KINDS.map((name) => [name, new Float64Array(this.buckets)]));
    if (values) {
      for (let i = 0; i < node.length; i++) {
        const at = node[i];
        if (!threads || threads.has(threadOf[at])) sums[at ? kind[frame[at]] : "process"][bucket[i]] += values[i];
      }
    }
    return sums;
  }

  draw(view) {
    if (!this.buckets) return;
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue("--" + name).trim();
    const ratio = window.devicePixelRatio || 1, { clientWidth: width, clientHeight: height } = this.box;
    const c = this.canvas.getContext("2d");
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    const [from, to] = this.ends, sums = this.sums(view);
    const base = new Float64Array(this.buckets);
    const top = Math.max(1, ...base.map((_, i) => KINDS.reduce((sum, kind) => sum + sums[kind][i], 0)));
    const scale = (height - 3) / top, step = width / this.buckets;
    for (const kind of KINDS) {
      c.fillStyle = color(kind);
      sums[kind].forEach((sum, i) => {
        if (!sum) return;
        c.globalAlpha = i >= from && i < to ? 1 : 0.25;
        base[i] += sum;
        c.fillRect(i * step, height - base[i] * scale, Math.max(step - (step > 4 ? 1 : 0), 0.75), sum * scale);
      });
    }
    this.say(view, from, to);
  }

  say(view, from, to) {
    const span = `${this.seconds(from).toFixed(3)} s to ${this.seconds(to).toFixed(3)} s`;
    const whole = `${this.seconds(this.buckets).toFixed(3)} s`;
    this.text.textContent = !this.profile.timed.has(view.weight) ? `${view.weight} has no times: it can't be cut to a part of the recording`
      : this.range ? `Showing ${span} of ${whole}` : `Time: all ${whole}. Drag to look at a part`;
    this.clear.hidden = !this.range;
    this.handles.forEach((handle, side) => {
      const edge = side ? to : from;
      handle.style.left = (100 * edge) / this.buckets + "%";
      handle.setAttribute("aria-valuemin", "0");
      handle.setAttribute("aria-valuemax", String(this.buckets));
      handle.setAttribute("aria-valuenow", String(edge));
      handle.setAttribute("aria-valuetext", `${this.seconds(edge).toFixed(3)} seconds`);
    });
  }
}
