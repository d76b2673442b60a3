// What the reader has chosen, in the address: a link shows what I see. `state.get("rank")`, `state.set({ rank: "3" })`.
//
// It is the part of the address behind `#`, as `name=value&name=value`; a place to jump to (`#findings`) has no `=` and
// stays as it is until something is chosen. In a frame the page around it is told, so that its address holds it too.

const state = (() => {
  const isState = () => location.hash.includes("=");
  const read = () => new URLSearchParams(isState() ? location.hash.slice(1) : "");
  let values = read();
  /** @type {(() => void)[]} */
  const heard = [];
  addEventListener("hashchange", () => {
    if (!isState()) return;
    values = read();
    heard.forEach((tell) => tell());
  });

  /** @type {(name: string) => string | null} */
  const get = (name) => values.get(name);

  // Null and empty values leave the address.
  /** @type {(changed: Record<string, string | null>) => void} */
  function set(changed) {
    for (const [name, value] of Object.entries(changed)) value ? values.set(name, value) : values.delete(name);
    const text = values.toString();
    if (text || isState()) history.replaceState(null, "", `#${text}`);
    if (window.parent !== window) tellParent(text);
  }
  function tellParent(text) {
    try {
      window.parent.dispatchEvent(new CustomEvent("inner-state", { detail: text }));
    } catch {
      // A frame of another origin is not told.
    }
  }
  // Called when the address is changed by hand or by going back.
  /** @type {(tell: () => void) => void} */
  const onChange = (tell) => void heard.push(tell);
  return { get, set, onChange };
})();
