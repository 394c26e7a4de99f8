// The menu of threads: a pattern, a list with shares, and whether threads are told apart at all.

class ThreadMenu {
  constructor(profile, onChange) {
    Object.assign(this, { profile, onChange });
    this.excluded = new Set();
    this.pattern = null;
    this.names = profile.threads.map((node) => profile.label[profile.frame[node]]);
    this.rows = profile.threads.map((node, i) => this.row(node, i));
    $("threads-open").hidden = !profile.threads.length;
    $("threads-open").addEventListener("click", () => this.open($("threads").hidden));
    $("thread-pattern").addEventListener("input", () => {
      const text = $("thread-pattern").value.trim();
      this.pattern = text ? globOrPart(text) : null;
      onChange();
    });
    $("threads-all").addEventListener("click", () => this.exclude([]));
    $("threads-none").addEventListener("click", () => this.exclude(this.names.keys()));
    document.addEventListener("pointerdown", (event) => {
      if (!event.target.closest(".menu")) this.open(false, false);
    });
  }

  row(node, i) {
    const { profile } = this;
    const process = profile.parent[node] > 0 ? profile.label[profile.frame[profile.parent[node]]] : "";
    const box = element("input", { type: "checkbox", checked: true });
    const fill = element("i"), share = element("span", { className: "share" });
    const name = element("span", { className: "name", title: `${this.names[i]} ${process}` },
      element("bdi", { textContent: this.names[i] }), " ", element("small", { textContent: process }));
    box.addEventListener("change", () => {
      if (box.checked) this.excluded.delete(i);
      else this.excluded.add(i);
      this.onChange();
    });
    const line = element("li", {}, element("label", {}, box, name, element("span", { className: "bar" }, fill), share));
    return { line, box, fill, share };
  }

  exclude(indices) {
    this.excluded = new Set(indices);
    this.onChange();
  }

  // Indices of the threads that are shown; null if none is left out.
  selected() {
    if (!this.pattern && !this.excluded.size) return null;
    return new Set([...this.names.keys()].filter((i) => !this.excluded.has(i) && this.matches(i)));
  }

  matches(i) {
    return !this.pattern || this.pattern.test(this.names[i]);
  }

  open(open, focus = true) {
    $("threads").hidden = !open;
    $("threads-open").setAttribute("aria-expanded", String(open));
    if (focus) (open ? $("thread-pattern") : $("threads-open")).focus();
  }

  // The shares are those among all threads, so that they stay while threads are switched on and off.
  show(view) {
    const { profile, names } = this;
    const self = view.threads ? timeSelf(profile, view.weight, view.range) : view.self;
    const sums = new Float64Array(names.length);
    let sum = 0;
    for (let i = 0; i < self.length; i++) {
      sum += self[i];
      if (profile.threadOf[i] >= 0) sums[profile.threadOf[i]] += self[i];
    }
    this.rows.forEach(({ line, box, fill, share }, i) => {
      line.hidden = !this.matches(i);
      box.checked = !this.excluded.has(i);
      fill.style.width = sum ? (100 * sums[i]) / sum + "%" : "0";
      share.textContent = percent(sums[i], sum);
    });
    if (!$("thread-list").children.length) {
      const heaviestFirst = [...sums.keys()].sort((a, b) => sums[b] - sums[a]);
      $("thread-list").append(...heaviestFirst.map((i) => this.rows[i].line));
    }
    const all = names.length;
    $("threads-open").textContent = view.threads ? `${view.threads.size} of ${all} threads`
      : all === 1 ? "1 thread" : `All ${all} threads`;
  }
}
