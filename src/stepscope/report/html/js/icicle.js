// A tree as an icicle: the root on top, each node as wide as its share, what is inside it below. Mouse and keys alike.

const ICICLE_ROW = 23;
const ICICLE_METRICS = [["host", "host time"], ["device", "device time with communication"], ["comm", "communication"], ["exposed", "exposed communication"]];
const ICICLE_COLOURS = { host: ["plain", "back"], device: ["plain", "back"], comm: ["sent", "sent"], exposed: ["bare", "bare"] };

/** @type {(node: CodeNode, parent?: Placed | null, depth?: number) => Placed} */
function placed(node, parent = null, depth = 0) {
  /** @type {Placed} */
  const own = { node, parent, depth, children: [] };
  own.children = (node.children ?? []).map((child) => placed(child, own, depth + 1));
  return own;
}

const around = (item) => (item.parent ? [...around(item.parent), item.parent] : []);

/** @param {{ root: Placed, label: string, metric: () => string, lines: (item: Placed) => string[], title: (item: Placed) => string }} given */
function icicle({ root, label, metric, lines, title }) {
  const state = { top: root, at: root };
  const box = el("div", { class: "icicle", role: "tree", "aria-label": label });
  const said = el("p", { class: "said", "aria-live": "polite" });
  const size = (item) => item.node[metric()] ?? 0;
  function draw() {
    if (!box.clientWidth) return;
    const width = Math.max(60, box.clientWidth), whole = size(state.top) || 1;
    const boxes = [];
    let deepest = 0;
    const put = (item, left, wide, isAround) => {
      deepest = Math.max(deepest, item.depth);
      item.box = node(item, left, wide, isAround);
      boxes.push(item.box);
      return left;
    };
    const below = (item, left) => {
      put(item, left, (size(item) / whole) * width, false);
      const inside = [...item.children].sort((a, b) => size(b) - size(a));
      let from = left;
      for (const child of inside) {
        const wide = (size(child) / whole) * width;
        if (wide < 1) break;
        below(child, from);
        from += wide;
      }
    };
    for (const item of around(state.top)) put(item, 0, width, true);
    below(state.top, 0);
    box.style.height = `${(deepest + 1) * ICICLE_ROW}px`;
    const focused = box.contains(document.activeElement);
    box.replaceChildren(...boxes);
    if (!state.at.box?.isConnected) state.at = state.top;
    state.at.box?.setAttribute("tabindex", "0");
    if (focused) state.at.box?.focus();
  }
  /** @type {(item: Placed, left: number, wide: number, isAround: boolean) => HTMLElement} */
  function node(item, left, wide, isAround) {
    const [first, second] = ICICLE_COLOURS[metric()];
    const back = item.node[`backward_${metric()}`] ?? 0;
    const part = size(item) ? `${(100 * (1 - back / size(item))).toFixed(1)}%` : "100%";
    return el("div", {
      role: "treeitem", tabindex: -1, "aria-level": item.depth + 1, "aria-label": [title(item), ...lines(item)].join(", "),
      "aria-expanded": item.children.length ? "true" : null, "aria-selected": item === state.at,
      class: `${wide < 28 ? "thin" : ""}${isAround ? " around" : ""}`,
      style: {
        left: `${left.toFixed(2)}px`, top: `${item.depth * ICICLE_ROW}px`, width: `${Math.max(1, wide).toFixed(2)}px`,
        "--first": `var(--${first})`, "--second": `var(--${second})`, "--part": part,
      },
      on: {
        click: () => zoom(item), focus: () => say(item), mousemove: (e) => tip.show(e, title(item), lines(item)), mouseleave: tip.hide,
      },
    }, wide < 28 ? null : title(item));
  }
  function say(item) {
    state.at.box?.setAttribute("tabindex", "-1");
    state.at.box?.setAttribute("aria-selected", "false");
    state.at = item;
    item.box.setAttribute("tabindex", "0");
    item.box.setAttribute("aria-selected", "true");
    said.replaceChildren(el("b", {}, title(item)), `: ${lines(item).join(", ")}`);
  }
  function zoom(item) {
    tip.hide();
    state.top = item === state.top ? item.parent ?? item : item;
    state.at = item;
    draw();
    state.at.box?.focus();
  }
  const drawn = (items) => items.filter((item) => item.box?.isConnected).sort((a, b) => size(b) - size(a));
  function next(key) {
    const item = state.at, beside = drawn(item.parent?.children ?? [item]);
    if (key === "ArrowUp") return item.parent;
    if (key === "ArrowDown") return drawn(item.children)[0];
    if (key === "Home") return root;
    return beside[beside.indexOf(item) + (key === "ArrowRight" ? 1 : -1)];
  }
  box.addEventListener("keydown", (e) => {
    if (["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home"].includes(e.key)) {
      e.preventDefault();
      next(e.key)?.box?.focus();
    } else if (e.key === "Enter" || e.key === " ") {
      e.preventDefault();
      zoom(state.at);
    } else if (e.key === "Escape" && state.top !== root) zoom(root);
  });
  return { box, said, draw };
}
