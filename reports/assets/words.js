// What is said about frames: the foot of the page, the tooltip, the legend, the path of the zoom.

const $ = (id) => document.getElementById(id);

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function factsOf(node) {
  const { view } = node;
  const facts = [[view.weight, amount(node.value, view.weight)], ["of all", percent(node.value, view.sum)]];
  if (node.parent && node.parent.parent) {
    facts.push([view.inverted ? "of the callee" : "of the caller", percent(node.value, node.parent.value)]);
  }
  if (node.parent && !view.inverted) facts.push(["self", amount(node.self, view.weight)]);
  return facts;
}

// What is known of a frame wherever it stands: how often a kernel ran, what was measured of it.
function detailsOf(node) {
  return (node.parent && node.view.profile.details[node.frame] || []).map(printable);
}

function showDetail(node) {
  const where = [node.parent ? node.layer : "", node.place, node.module].filter(Boolean);
  $("detail").replaceChildren(
    element("div", { className: "what", textContent: node.label }),
    element("div", { className: "facts" },
      ...detailsOf(node).map((text) => element("span", { textContent: text + " " })),
      ...factsOf(node).map(([name, value]) => element("span", {}, element("b", { textContent: value }), ` ${name} `)),
      ...where.map((text) => element("span", { textContent: text + " " }))));
}

function showTooltip(rect, event, zoom) {
  const box = $("tooltip");
  box.hidden = !rect;
  if (!rect) return;
  if (rect.node) {
    const { node } = rect;
    const rows = [["layer", node.parent ? node.layer : ""], ["at", node.place], ["in", node.module], ...factsOf(node)];
    box.replaceChildren(
      element("div", { className: "what", textContent: node.label }),
      ...detailsOf(node).map((text) => element("div", { textContent: text })),
      element("div", { className: "grid" },
        ...rows.filter((row) => row[1]).flatMap((row) => row.map((textContent) => element("span", { textContent })))));
  } else {
    box.textContent = `${rect.count.toLocaleString("en")} frames too narrow to draw, ` +
      `${percent(rect.value, rect.owner.view.sum)} of all together.` + (rect.owner === zoom ? "" : " Click to zoom in.");
  }
  const { innerWidth, innerHeight } = window, { width, height } = box.getBoundingClientRect();
  const below = event.clientY + 18;
  box.style.left = Math.max(8, Math.min(event.clientX + 14, innerWidth - width - 8)) + "px";
  box.style.top = (below + height > innerHeight ? Math.max(8, event.clientY - height - 12) : below) + "px";
}

// Kinds that the recording holds, with the share of the weight that ends in each.
function showLegend(view) {
  const { kind, kinds, label } = view.profile, sums = view.kindSums();
  $("legend").replaceChildren(...KINDS.filter((name) => kinds.has(name) && !/^(process|thread)$/.test(name)).map((name) => {
    const text = !name.startsWith("state-") ? name
      : name === "state-other" ? "other state" : name === "state-gpu-sync" ? "waiting: GPU sync" : label[kind.indexOf(name)].replace(/^\[(.*)\]$/, "$1");
    return element("li", { title: "Share of the weight that ends in such a frame" },
      element("i", { className: `swatch sw-${name}` }), text, element("small", { textContent: percent(sums[name], view.sum) }));
  }));
}

function showCrumbs(zoom, go) {
  const path = [zoom.view.root, ...zoom.path];
  const kept = path.length <= 6 ? path : [...path.slice(0, 2), null, ...path.slice(-3)];
  $("crumbs").replaceChildren(...kept.flatMap((node, i) => {
    const step = node ? element("button", { type: "button", textContent: node.label || "(no name)", title: node.label })
      : element("span", { textContent: "…" });
    if (node) step.addEventListener("click", () => go(node));
    if (node === zoom) step.setAttribute("aria-current", "true");
    return i ? [element("span", { textContent: "›", ariaHidden: "true" }), step] : [step];
  }));
}
