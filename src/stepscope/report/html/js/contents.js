// Links to the sections of a page, the one in view marked. `short` has shorter names than their titles.

/** @type {(root: HTMLElement, short?: Record<string, string>) => HTMLElement} */
function contents(root, short = {}) {
  const links = new Map([...root.querySelectorAll("section.panel")].map((section) =>
    [section, el("a", { href: `#${section.id}` }, short[section.id] ?? section.querySelector("h2")?.textContent)]));
  const seen = new Set();
  const mark = () => {
    const first = [...links.keys()].find((section) => seen.has(section));
    for (const [section, link] of links) section === first ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
  };
  const watch = new IntersectionObserver((entries) => {
    for (const e of entries) e.isIntersecting ? seen.add(e.target) : seen.delete(e.target);
    mark();
  }, { rootMargin: "-60px 0px -40% 0px" });
  for (const section of links.keys()) watch.observe(section);
  return el("nav", { class: "contents", "aria-label": "Sections" }, ...links.values());
}
