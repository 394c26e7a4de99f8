// Controls and keys. What is looked at lives in `look`, the strip and the thread menu; changes go through refresh().

const DIRECTIONS = {
  icicle: ["Icicle", "Callers on top, what they called below"],
  flame: ["Flame", "Callers at the bottom, what they called above"],
  inverted: ["Inverted", "What the time ended in on top, its callers below"],
};
const WEIGHT_TITLES = {
  wall: "Time that passed, working or waiting", cpu: "Time on a CPU", "off-cpu": "Time not on a CPU",
  gpu: "Time of each GPU, busy and idle, under the code that caused it",
  samples: "How often the samplers saw it",
};
const THEMES = { system: ["◐", "as the system"], dark: ["☾", "dark"], light: ["☀", "light"] };

class App {
  constructor(profile) {
    this.profile = profile;
    this.look = { weight: profile.firstWeight, direction: "icicle", merged: false, search: "", regex: false };
    this.theme = "system";
    this.history = [];
    this.flame = new Flame($("flame"), $("scroller"), $("spacer"));
    this.strip = new Strip(profile, () => this.refresh());
    this.threads = new ThreadMenu(profile, () => this.refresh());
    this.makeControls();
    this.listen();
    this.refresh();
    new ResizeObserver(() => this.flame.stale && this.relayout()).observe($("scroller"));
  }

  // ---- what is looked at

  refresh() {
    const { look, profile, view: old } = this;
    const inverted = look.direction === "inverted";
    const comparable = old && old.inverted === inverted && old.merged === look.merged;
    const framesTo = (node) => node.path.map((n) => n.frame);
    const view = this.view = new View(profile, {
      weight: look.weight, merged: look.merged, inverted, threads: this.threads.selected(),
      range: profile.timed.has(look.weight) ? this.strip.range : null,
    });
    this.history = comparable ? this.history.map((node) => view.find(framesTo(node))) : [];
    this.zoom = comparable ? view.find(framesTo(this.zoom)) : view.root;
    this.flame.focus = comparable && this.flame.focus ? view.find(framesTo(this.flame.focus)) : null;
    this.flame.hover = null;
    this.flame.upward = look.direction === "flame";
    this.showSearch();
    this.relayout();
    this.showControls();
    this.threads.show(view);
    showLegend(view);
  }

  relayout() {
    this.flame.layout(this.zoom);
    this.strip.draw(this.view);
    $("empty").hidden = this.view.sum > 0;
    $("empty").textContent = this.profile.weightNames.length
      ? `Nothing of weight ${this.look.weight} in what is selected.` : "This recording holds nothing that can be weighed.";
    showCrumbs(this.zoom, (node) => this.zoomTo(node));
    showDetail(this.flame.focus || this.zoom);
  }

  set(change) {
    Object.assign(this.look, change);
    this.refresh();
  }

  setDirection(direction) {
    this.set({ direction });
    $("scroller").scrollTop = direction === "flame" ? $("scroller").scrollHeight : 0;
  }

  zoomTo(node, remember = true) {
    if (node === this.zoom) return;
    if (remember) this.history.push(this.zoom);
    this.zoom = node;
    this.flame.focus = node;
    this.showSearch();
    this.relayout();
    $("scroller").scrollTop = this.flame.upward ? $("scroller").scrollHeight : 0;
    this.flame.reveal(node);
  }

  // Steps back through the zooms, then out to everything, then lets go of the search.
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

  showSearch() {
    const { look, view, zoom, flame } = this;
    let words = "";
    flame.mask = this.match = null;
    $("search").setAttribute("aria-invalid", "false");
    try {
      flame.mask = searchMask(this.profile, look.search, look.regex);
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      $("search").setAttribute("aria-invalid", "true");
      words = "not a valid expression";
    }
    if (flame.mask) {
      this.match = view.matched(flame.mask, zoom);
      const { all, inside } = this.match;
      words = all ? `matched ${percent(all, view.sum)} · ${amount(all, look.weight)}` : "no match";
      if (all && zoom.parent) words += ` (${percent(inside, zoom.value)} of the zoomed frame)`;
    }
    $("search-result").textContent = words;
  }

  // ---- controls

  makeControls() {
    const { profile } = this;
    const weights = profile.weightNames.map((name) => [name, [name, WEIGHT_TITLES[name]]]);
    makeRadios($("weights"), weights, (weight) => this.set({ weight }));
    makeRadios($("views"), Object.entries(DIRECTIONS), (direction) => this.setDirection(direction));
    $("notes").hidden = !profile.notes.length;
    $("note-list").append(...profile.notes.map((note) => element("li", { textContent: printable(note) })));
  }

  showControls() {
    const { profile, view, look } = this;
    for (const [box, value] of [[$("weights"), look.weight], [$("views"), look.direction]]) {
      for (const button of box.children) {
        const on = button.dataset.value === value;
        button.setAttribute("aria-checked", String(on));
        button.tabIndex = on ? 0 : -1;
      }
    }
    const count = view.threads ? view.threads.size : profile.threads.length;
    const sum = amount(view.sum, look.weight) + (look.weight === "samples" ? "" : " " + look.weight);
    $("summary").textContent = `${sum} over ${count} thread${count === 1 ? "" : "s"}`;
    $("merge").checked = look.merged;
    $("flame").setAttribute("aria-label",
      `Flame graph of ${printable(profile.title)}, ${look.direction}, weight ${look.weight}, ${sum} in all`);
  }

  nextTheme() {
    this.theme = nextOf(Object.keys(THEMES), this.theme);
    this.applyTheme();
  }

  applyTheme() {
    const [icon, name] = THEMES[this.theme];
    document.documentElement.dataset.theme = this.theme === "system" ? systemTheme() : this.theme;
    $("theme").textContent = icon;
    $("theme").setAttribute("aria-label", `Colour theme: ${name}`);
    this.flame.readTheme();
    this.flame.draw();
    this.strip.draw(this.view);
  }

  // ---- keys and pointer

  focusOn(node) {
    this.flame.focus = node;
    this.flame.reveal(node);
    this.flame.draw();
    showDetail(node);
  }

  // Up and down follow the picture, left and right the row.
  move(key) {
    const { flame } = this;
    const current = flame.find(flame.focus) || flame.find(this.zoom);
    if (!current) return;
    let next = current;
    if (flame.focus && (key === "ArrowLeft" || key === "ArrowRight")) {
      const frames = flame.byRow[current.row].filter((rect) => rect.node);
      next = frames[frames.indexOf(current) + (key === "ArrowRight" ? 1 : -1)];
    } else if (flame.focus && key === (flame.upward ? "ArrowUp" : "ArrowDown")) {
      next = (flame.byRow[current.row + 1] || []).find((rect) => rect.node && rect.node.parent === current.node);
    } else if (flame.focus) {
      next = flame.find(current.node.parent);
    }
    if (next) this.focusOn(next.node);
  }

  nextMatch(step) {
    const { mask, rects, focus } = this.flame;
    if (!mask) return;
    const hits = rects.filter((rect) => rect.node && rect.node.parent && mask[rect.node.frame])
      .sort((a, b) => a.row - b.row || a.x - b.x);
    if (!hits.length) return;
    const at = hits.findIndex((rect) => rect.node === focus);
    const next = at < 0 ? (step > 0 ? 0 : hits.length - 1) : (at + step + hits.length) % hits.length;
    this.focusOn(hits[next].node);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
    const typing = event.target.matches("input:not([type=checkbox])");
    if (event.key === "Escape") {
      event.preventDefault();
      if (!$("threads").hidden) this.threads.open(false);
      else if (typing && event.target.value) this.setSearch("");
      else if (typing) $("flame").focus();
      else this.back();
      return;
    }
    if (typing) return;
    const keys = {
      "/": () => $("search").focus(),
      "?": () => $("help").showModal(),
      Backspace: () => this.back(),
      n: () => this.nextMatch(1),
      N: () => this.nextMatch(-1),
      i: () => this.setDirection(nextOf(Object.keys(DIRECTIONS), this.look.direction)),
      w: () => this.set({ weight: nextOf(this.profile.weightNames, this.look.weight) }),
      m: () => this.set({ merged: !this.look.merged }),
      t: () => this.nextTheme(),
    };
    if (!event.target.closest("button, input, [role=slider]")) {
      for (const arrow of ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"]) keys[arrow] = () => this.move(arrow);
      keys.Enter = () => this.flame.focus && this.zoomTo(this.flame.focus);
      keys.Home = () => this.zoomTo(this.view.root);
    }
    if (!Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    keys[event.key]();
  }

  rectUnder(event) {
    const box = $("flame").getBoundingClientRect();
    return this.flame.at(event.clientX - box.left, event.clientY - box.top);
  }

  point(event) {
    const rect = event.type === "mouseleave" ? null : this.rectUnder(event);
    showTooltip(rect, event, this.zoom);
    const node = rect && rect.node;
    if (this.flame.hover === node) return;
    this.flame.hover = node;
    this.flame.draw();
  }

  listen() {
    $("flame").addEventListener("mousemove", (event) => this.point(event));
    $("flame").addEventListener("mouseleave", (event) => this.point(event));
    $("flame").addEventListener("click", (event) => {
      const rect = this.rectUnder(event);
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
    $("merge").addEventListener("change", () => this.set({ merged: $("merge").checked }));
    $("theme").addEventListener("click", () => this.nextTheme());
    $("help-open").addEventListener("click", () => $("help").showModal());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.applyTheme());
  }
}

function makeRadios(box, options, choose) {
  for (const [value, [textContent, title]] of options) {
    const button = element("button", { type: "button", textContent, title, role: "radio" });
    button.dataset.value = value;
    button.addEventListener("click", () => choose(value));
    box.append(button);
  }
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const all = [...box.children];
    const next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
    next.focus();
    choose(next.dataset.value);
  });
}

function nextOf(values, current) {
  return values[(values.indexOf(current) + 1) % values.length];
}

function systemTheme() {
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

// A read-only look at the page's own figures, for scripts and tests.
// openMs: what the script took until it had drawn; drawnAtMs: when that was, since the navigation began.
function expose(app, openMs, drawnAtMs) {
  const describe = (node) => node && {
    path: node.path.map((n) => n.label), layer: node.layer, value: node.value, self: node.self, place: node.place,
  };
  window.perfscope = Object.freeze({
    openMs,
    drawnAtMs,
    get weight() { return app.look.weight; },
    get direction() { return app.look.direction; },
    get total() { return app.view.sum; },
    get zoom() { return app.zoom.path.map((node) => node.label); },
    get focus() { return describe(app.flame.focus); },
    get matched() { return app.match && { ...app.match }; },
    get kinds() { return app.view.kindSums(); },
    get frames() {
      const { flame } = app;
      return flame.rects.filter((rect) => rect.node).map((rect) => ({
        ...describe(rect.node), x: rect.x, width: rect.w, y: flame.rowTop(rect.row), faded: Boolean(rect.faded),
      }));
    },
  });
}

async function start() {
  const began = performance.now();
  document.documentElement.dataset.theme = systemTheme();
  try {
    const app = new App(new Profile(await inflate($("data").textContent)));
    $("data").remove();
    await new Promise((shown) => requestAnimationFrame(() => setTimeout(shown)));
    expose(app, performance.now() - began, performance.now());
    document.documentElement.dataset.state = "drawn";
  } catch (error) {
    document.documentElement.dataset.state = "failed";
    $("empty").hidden = false;
    $("empty").textContent = `The flame graph can't be drawn: ${error.message}. It needs a browser of 2023 or later.`;
    throw error;
  }
}

start();
