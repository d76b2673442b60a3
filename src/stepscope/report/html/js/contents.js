// Links to the sections of a page, the one in view marked and kept in the address. `short` has shorter names than their
// titles. Sections are added as they are drawn.

const SETTLED_MS = 200;

/** @type {(short?: Record<string, string>) => { nav: HTMLElement, add: (root: ParentNode) => void }} */
function contents(short = {}) {
  /** @type {Map<Element, HTMLElement>} */
  const links = new Map();
  const seen = new Set();
  const nav = el("nav", { class: "contents", "aria-label": "Sections" });
  const current = () => [...links.keys()].find((section) => seen.has(section));
  // Between two sections the last one stays marked, above all of them the first.
  /** @type {Element | undefined} */
  let last;
  const mark = () => {
    const first = (last = current() ?? last ?? [...links.keys()][0]);
    for (const [section, link] of links) section === first ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
    const link = first && links.get(first);
    if (link) nav.scrollLeft = link.offsetLeft - 40; // on a phone the list is wider than the page
  };
  const watch = new IntersectionObserver((entries) => {
    for (const e of entries) e.isIntersecting ? seen.add(e.target) : seen.delete(e.target);
    mark();
  }, { rootMargin: "-100px 0px -40% 0px" });
  let timer = 0;
  addEventListener("scroll", () => {
    clearTimeout(timer);
    timer = setTimeout(() => state.set({ at: scrollY > 0 ? current()?.id ?? null : null }), SETTLED_MS);
  }, { passive: true });
  function add(root) {
    for (const section of root.querySelectorAll("section.panel")) {
      if (links.has(section)) continue;
      links.set(section, el("a", { href: `#${section.id}` }, short[section.id] ?? section.querySelector("h2")?.textContent));
      watch.observe(section);
    }
    nav.replaceChildren(...links.values());
  }
  return { nav, add };
}

// The links of a page that is drawn at once, above it; then the section that the address names.
/** @type {(root: HTMLElement, short?: Record<string, string>) => void} */
function listSections(root, short = {}) {
  const list = contents(short);
  list.add(root);
  root.before(list.nav);
  if (scrollY === 0) state.goTo();
}
