// Controls, keys, and words. State lives in `look`; every change goes through refresh().

const $ = (id) => document.getElementById(id);
const DIRECTIONS = { icicle: "Icicle", flame: "Flame", inverted: "Inverted" };
const DIRECTION_TITLES = {
  icicle: "Callers on top, what they called below",
  flame: "Callers at the bottom, what they called above",
  inverted: "What the time ended in on top, its callers below",
};

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

class App {
  constructor(profile) {
    this.profile = profile;
    this.look = { weight: profile.firstWeight, direction: "icicle", merged: false, search: "", regex: false };
    this.excluded = new Set();
    this.pattern = "";
    this.history = [];
    this.flame = new Flame($("flame"), $("scroller"), $("spacer"));
    this.strip = new Strip(profile, () => this.refresh());
    this.makeControls();
    this.makeThreads();
    this.listen();
    this.refresh();
    new ResizeObserver(() => this.relayout()).observe($("scroller"));
  }

  // ---- what is looked at

  threadSet() {
    const { profile, pattern, excluded } = this;
    if (!pattern && !excluded.size) return null;
    const test = pattern ? globOrPart(pattern) : null;
    return new Set([...profile.threads.keys()].filter((i) => !excluded.has(i) && (!test || test.test(this.threadName(i)))));
  }

  threadName(index) {
    return this.profile.label[this.profile.frame[this.profile.threads[index]]];
  }

  refresh() {
    const { look, profile } = this;
    const path = this.view && this.view.inverted === (look.direction === "inverted") && this.view.merged === look.merged
      ? [this.zoom, this.flame.focus].map((node) => node && node.path.map((n) => n.frame)) : [[], null];
    this.threads = this.threadSet();
    const range = profile.timed.has(look.weight) ? this.strip.range : null;
    this.view = new View(profile, {
      weight: look.weight, threads: this.threads, range, inverted: look.direction === "inverted", merged: look.merged,
    });
    this.flame.upward = look.direction === "flame";
    this.history = this.history.map((old) => this.view.find(old.path.map((n) => n.frame)));
    this.zoom = this.view.find(path[0]);
    this.flame.focus = path[1] ? this.view.find(path[1]) : null;
    this.flame.hover = null;
    this.showSearch();
    this.relayout();
    this.showControls();
    this.showThreads();
    this.showLegend();
    this.strip.draw(look.weight, this.threads);
  }

  relayout() {
    this.flame.layout(this.zoom);
    this.strip.draw(this.look.weight, this.threads);
    $("empty").hidden = this.view.sum > 0;
    $("empty").textContent = this.profile.weightNames.length
      ? `No ${this.look.weight} time in what is selected.` : "This recording holds nothing that can be weighed.";
    this.showCrumbs();
    this.showDetail(this.flame.focus || this.zoom);
  }

  zoomTo(node, remember = true) {
    if (node === this.zoom) return;
    if (remember) this.history.push(this.zoom);
    this.zoom = node;
    this.flame.focus = node;
    $("scroller").scrollTop = 0;
    this.showSearch();
    this.relayout();
    if (this.flame.upward) $("scroller").scrollTop = $("scroller").scrollHeight;
    this.flame.reveal(node);
  }

  back() {
    if (this.history.length) this.zoomTo(this.history.pop(), false);
    else if (this.zoom.parent) this.zoomTo(this.view.root, false);
    else if (this.look.search) this.setSearch("");
  }

  setSearch(text) {
    this.look.search = $("search").value = text;
    this.showSearch();
    this.flame.draw();
  }

  // ---- controls

  radios(box, options, choose) {
    for (const [value, [text, title]] of Object.entries(options)) {
      const button = element("button", { type: "button", textContent: text, title });
      button.setAttribute("role", "radio");
      button.dataset.value = value;
      button.addEventListener("click", () => choose(value));
      box.append(button);
    }
    box.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      const all = [...box.children], at = all.indexOf(document.activeElement);
      const next = all[(at + step + all.length) % all.length];
      next.focus();
      choose(next.dataset.value);
    });
  }

  makeControls() {
    const titles = { wall: "Time that passed", cpu: "Time on a CPU", "off-cpu": "Time not on a CPU", samples: "Looks of the samplers" };
    this.radios($("weights"), Object.fromEntries(this.profile.weightNames.map((n) => [n, [n, titles[n]]])), (weight) => this.set({ weight }));
    this.radios($("views"), Object.fromEntries(Object.entries(DIRECTIONS).map(([k, v]) => [k, [v, DIRECTION_TITLES[k]]])), (direction) => this.setDirection(direction));
    if (this.profile.notes.length) {
      $("notes").hidden = false;
      $("notes").append(...this.profile.notes.map((note) => element("span", { textContent: printable(note) })));
    }
  }

  set(change) {
    Object.assign(this.look, change);
    this.refresh();
  }

  setDirection(direction) {
    if ((direction === "inverted") !== (this.look.direction === "inverted")) this.history = [];
    this.set({ direction });
    $("scroller").scrollTop = direction === "flame" ? $("scroller").scrollHeight : 0;
    this.flame.draw();
  }

  showControls() {
    for (const [box, value] of [[$("weights"), this.look.weight], [$("views"), this.look.direction]]) {
      for (const button of box.children) {
        const on = button.dataset.value === value;
        button.setAttribute("aria-checked", String(on));
        button.tabIndex = on ? 0 : -1;
      }
    }
    const { profile, view } = this;
    const threads = profile.threads.length;
    $("summary").textContent = `${amount(view.sum, this.look.weight)} ${this.look.weight === "samples" ? "" : this.look.weight} ` +
      `over ${threads} thread${threads === 1 ? "" : "s"}`;
    $("merge").checked = this.look.merged;
    $("flame").setAttribute("aria-label", `Flame graph of ${printable(profile.title)}, ${DIRECTIONS[this.look.direction].toLowerCase()}, ` +
      `weight ${this.look.weight}, ${amount(view.sum, this.look.weight)} in all`);
  }

  makeThreads() {
    const { profile } = this;
    this.threadRows = profile.threads.map((node, i) => {
      const box = element("input", { type: "checkbox", checked: true });
      const fill = element("i"), share = element("span", { className: "share" });
      const process = profile.parent[node] > 0 ? profile.label[profile.frame[profile.parent[node]]] : "";
      const name = element("span", { className: "name", title: `${this.threadName(i)} ${process}` }, element("bdi", { textContent: this.threadName(i) }), " ", element("small", { textContent: process }));
      const row = element("li", {}, element("label", {}, box, name, element("span", { className: "bar" }, fill), share));
      box.addEventListener("change", () => {
        if (box.checked) this.excluded.delete(i);
        else this.excluded.add(i);
        this.refresh();
      });
      return { row, box, fill, share };
    });
    $("threads-open").hidden = !profile.threads.length;
  }

  // The shares beside the names are those of all threads, so that they stay while threads are switched on and off.
  showThreads() {
    const { profile, look, threads } = this;
    const self = timeSelf(profile, look.weight, this.view.range);
    const sums = new Float64Array(profile.threads.length);
    let sum = 0;
    for (let i = 0; i < self.length; i++) {
      sum += self[i];
      if (profile.threadOf[i] >= 0) sums[profile.threadOf[i]] += self[i];
    }
    const test = this.pattern ? globOrPart(this.pattern) : null;
    this.threadRows.forEach(({ row, box, fill, share }, i) => {
      row.hidden = Boolean(test) && !test.test(this.threadName(i));
      box.checked = !this.excluded.has(i);
      fill.style.width = sum ? (100 * sums[i]) / sum + "%" : "0";
      share.textContent = percent(sums[i], sum);
    });
    if (!$("thread-list").children.length) {
      const order = [...sums.keys()].sort((a, b) => sums[b] - sums[a]);
      $("thread-list").append(...order.map((i) => this.threadRows[i].row));
    }
    $("threads-open").textContent = threads ? `${threads.size} of ${profile.threads.length} threads`
      : profile.threads.length === 1 ? "1 thread" : `All ${profile.threads.length} threads`;
  }

  showSearch() {
    const { look } = this;
    let words = "";
    $("search").setAttribute("aria-invalid", "false");
    this.flame.mask = null;
    this.match = null;
    try {
      this.flame.mask = searchMask(this.profile, look.search, look.regex);
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      $("search").setAttribute("aria-invalid", "true");
      words = "not a valid expression";
    }
    if (this.flame.mask) {
      this.match = this.view.matched(this.flame.mask, this.zoom);
      const { all, inside } = this.match;
      words = all ? `matched ${percent(all, this.view.sum)} · ${amount(all, look.weight)}` : "no match";
      if (all && this.zoom.parent) words += ` (${percent(inside, this.zoom.value)} of the zoomed frame)`;
    }
    $("search-result").textContent = words;
  }

  showLegend() {
    const shares = this.view.layerShares();
    const present = new Set(this.profile.layer);
    $("legend").replaceChildren(...LAYERS.slice(0, 6).filter((layer) => present.has(layer)).map((layer) =>
      element("li", { title: `${layer}: share of the weight that ends in it` }, element("i", { className: "sw-" + layer }), layer,
        element("small", { textContent: percent(shares[layer], this.view.sum) }))));
  }

  showCrumbs() {
    const path = [this.view.root, ...this.zoom.path];
    const keep = path.length <= 6 ? path : [...path.slice(0, 2), null, ...path.slice(-3)];
    $("crumbs").replaceChildren(...keep.flatMap((node, i) => {
      const button = node ? element("button", { type: "button", textContent: node.label, title: node.label }) : element("span", { textContent: "…" });
      if (node) button.addEventListener("click", () => this.zoomTo(node));
      if (node === this.zoom) button.setAttribute("aria-current", "true");
      return i ? [element("span", { textContent: "›", ariaHidden: "true" }), button] : [button];
    }));
  }

  // ---- words about one frame

  facts(node) {
    const { look, view } = this;
    const facts = [[look.weight, amount(node.value, look.weight)], ["of all", percent(node.value, view.sum)]];
    if (node.parent && node.parent.parent) facts.push(["of " + (view.inverted ? "callee" : "parent"), percent(node.value, node.parent.value)]);
    if (node.parent && !view.inverted) facts.push(["self", amount(node.self, look.weight)]);
    return facts;
  }

  showDetail(node) {
    const where = [node.parent ? node.layer : "", node.place, node.module].filter(Boolean).join(" · ");
    const facts = this.facts(node).flatMap(([name, value]) => [element("b", { textContent: value }), ` ${name}   `]);
    $("detail").replaceChildren(element("div", { className: "what", textContent: node.label }),
      element("div", { className: "facts" }, ...facts, where));
  }

  showTooltip(rect, event) {
    const box = $("tooltip");
    box.hidden = !rect;
    if (!rect) return;
    if (rect.node) {
      const { node } = rect;
      const rows = [["layer", node.parent ? node.layer : ""], ["at", node.place], ["in", node.module], ...this.facts(node)].filter((r) => r[1]);
      box.replaceChildren(element("div", { className: "what", textContent: node.label }),
        element("div", { className: "grid" }, ...rows.flatMap((r) => r.map((textContent) => element("span", { textContent })))));
    } else {
      box.textContent = `${rect.count.toLocaleString("en")} frames too narrow to draw, ` +
        `${percent(rect.value, this.view.sum)} of all in sum; zoom in to see them`;
    }
    const { innerWidth, innerHeight } = window, { width, height } = box.getBoundingClientRect();
    box.style.left = Math.max(8, Math.min(event.clientX + 14, innerWidth - width - 8)) + "px";
    box.style.top = (event.clientY + 18 + height > innerHeight ? Math.max(8, event.clientY - height - 12) : event.clientY + 18) + "px";
  }

  // ---- keys and pointer

  move(key) {
    const flame = this.flame;
    const current = flame.rects.find((r) => r.node && r.node === flame.focus) || flame.rects.find((r) => r.node === this.zoom);
    if (!current) return;
    const down = key === (flame.upward ? "ArrowUp" : "ArrowDown"), row = flame.byRow[current.row];
    let next;
    if (!flame.focus) next = current;
    else if (down) next = (flame.byRow[current.row + 1] || []).find((r) => r.node && (r.node.parent === current.node));
    else if (key === "ArrowUp" || key === "ArrowDown") next = flame.rects.find((r) => r.node && r.node === current.node.parent);
    else {
      const frames = row.filter((r) => r.node), at = frames.indexOf(current) + (key === "ArrowRight" ? 1 : -1);
      next = frames[at];
    }
    if (next) this.focusOn(next.node);
  }

  focusOn(node) {
    this.flame.focus = node;
    this.flame.reveal(node);
    this.flame.draw();
    this.showDetail(node);
  }

  nextMatch(step) {
    const { mask, rects, focus } = this.flame;
    if (!mask) return;
    const hits = rects.filter((r) => r.node && r.node.parent && mask[r.node.frame]).sort((a, b) => a.row - b.row || a.x - b.x);
    if (!hits.length) return;
    const at = hits.findIndex((r) => r.node === focus);
    this.focusOn(hits[(at + step + hits.length + (at < 0 && step < 0 ? 1 : 0)) % hits.length].node);
  }

  next(values, current) {
    return values[(values.indexOf(current) + 1) % values.length];
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
    const typing = event.target.matches("input:not([type=checkbox])");
    if (event.key === "Escape") {
      if (!$("threads").hidden) this.openThreads(false);
      else if (typing && event.target.value) this.setSearch("");
      else if (typing) $("flame").focus();
      else this.back();
      return event.preventDefault();
    }
    if (typing) return;
    const onControl = event.target.closest("button, input, [role=slider]");
    const keys = {
      "/": () => $("search").focus(),
      "?": () => $("help").showModal(),
      Backspace: () => this.back(),
      n: () => this.nextMatch(1),
      N: () => this.nextMatch(-1),
      i: () => this.setDirection(this.next(Object.keys(DIRECTIONS), this.look.direction)),
      w: () => this.set({ weight: this.next(this.profile.weightNames, this.look.weight) }),
      m: () => this.setMerged(!this.look.merged),
      t: () => this.nextTheme(),
    };
    if (!onControl) {
      for (const arrow of ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"]) keys[arrow] = () => this.move(arrow);
      keys.Enter = () => this.flame.focus && this.zoomTo(this.flame.focus);
      keys.Home = () => this.zoomTo(this.view.root);
    }
    const action = Object.hasOwn(keys, event.key) && keys[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  setMerged(merged) {
    this.history = [];
    this.set({ merged });
  }

  openThreads(open) {
    $("threads").hidden = !open;
    $("threads-open").setAttribute("aria-expanded", String(open));
    (open ? $("thread-pattern") : $("threads-open")).focus();
  }

  nextTheme() {
    this.themeChoice = this.next(["system", "dark", "light"], this.themeChoice || "system");
    this.applyTheme();
  }

  applyTheme() {
    const choice = this.themeChoice || "system";
    const dark = choice === "system" ? matchMedia("(prefers-color-scheme: dark)").matches : choice === "dark";
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    $("theme").textContent = { system: "◐", dark: "☾", light: "☀" }[choice];
    $("theme").setAttribute("aria-label", `Colour theme: ${choice === "system" ? "as the system" : choice}`);
    this.flame.readTheme();
    this.flame.draw();
    this.strip.draw(this.look.weight, this.threads);
  }

  listen() {
    const canvas = $("flame");
    canvas.addEventListener("mousemove", (event) => {
      const box = canvas.getBoundingClientRect();
      const rect = this.flame.at(event.clientX - box.left, event.clientY - box.top);
      this.showTooltip(rect, event);
      if ((this.flame.hover && this.flame.hover.node) !== (rect && rect.node)) {
        this.flame.hover = rect && rect.node ? rect : null;
        this.flame.draw();
      }
    });
    canvas.addEventListener("mouseleave", () => {
      this.flame.hover = null;
      $("tooltip").hidden = true;
      this.flame.draw();
    });
    canvas.addEventListener("click", (event) => {
      const box = canvas.getBoundingClientRect();
      const rect = this.flame.at(event.clientX - box.left, event.clientY - box.top);
      $("tooltip").hidden = true;
      if (rect) this.zoomTo(rect.node || rect.owner);
    });
    document.addEventListener("keydown", (event) => this.key(event));
    $("search").addEventListener("input", () => this.setSearch($("search").value));
    $("search-form").addEventListener("submit", (event) => {
      event.preventDefault();
      $("flame").focus();
      this.nextMatch(1);
    });
    $("regex").addEventListener("click", () => {
      this.look.regex = !this.look.regex;
      $("regex").setAttribute("aria-pressed", String(this.look.regex));
      this.setSearch(this.look.search);
    });
    $("theme").addEventListener("click", () => this.nextTheme());
    $("help-open").addEventListener("click", () => $("help").showModal());
    $("threads-open").addEventListener("click", () => this.openThreads($("threads").hidden));
    $("thread-pattern").addEventListener("input", () => {
      this.pattern = $("thread-pattern").value.trim();
      this.refresh();
    });
    $("threads-all").addEventListener("click", () => (this.excluded.clear(), this.refresh()));
    $("threads-none").addEventListener("click", () => {
      this.excluded = new Set(this.profile.threads.keys());
      this.refresh();
    });
    $("merge").addEventListener("change", () => this.setMerged($("merge").checked));
    document.addEventListener("pointerdown", (event) => {
      if (!event.target.closest(".menu")) {
        $("threads").hidden = true;
        $("threads-open").setAttribute("aria-expanded", "false");
      }
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.applyTheme());
  }
}

// A read-only look at the page's own figures, for scripts and tests.
function expose(app, openMs) {
  const describe = (node) => node && { label: node.label, layer: node.layer, value: node.value, self: node.self, place: node.place, depth: node.depth };
  window.perfscope = Object.freeze({
    openMs,
    get weight() { return app.look.weight; },
    get direction() { return app.look.direction; },
    get total() { return app.view.sum; },
    get zoom() { return app.zoom.path.map((node) => node.label); },
    get focus() { return describe(app.flame.focus); },
    get matched() { return app.match && { ...app.match }; },
    get frames() {
      return app.flame.rects.filter((r) => r.node).map((r) => ({ ...describe(r.node), x: r.x, width: r.w, y: app.flame.rowTop(r.row), faded: Boolean(r.faded) }));
    },
    get layers() { return app.view.layerShares(); },
  });
}

async function start() {
  const began = performance.now();
  document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  try {
    const app = new App(new Profile(await inflate($("data").textContent)));
    $("data").remove();
    expose(app, performance.now() - began);
  } catch (error) {
    $("empty").hidden = false;
    $("empty").textContent = `The flame graph can't be drawn: ${error.message}. It needs a browser of 2023 or later.`;
    throw error;
  }
}

start();
