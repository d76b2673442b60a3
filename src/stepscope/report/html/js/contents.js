// Links to the sections of a page by their ids, the one in view marked and kept in the address.

const SETTLED_MS = 200;

/** @type {(root: HTMLElement) => void} */
function listSections(root) {
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
  for (const section of root.querySelectorAll("section.panel")) {
    links.set(section, el("a", { href: `#${section.id}` }, section.id.replaceAll("-", " ")));
    watch.observe(section);
  }
  nav.replaceChildren(...links.values());
  root.before(nav);
  if (scrollY === 0) state.goTo();
}
