// What the reader has chosen, in the address: a link shows what I see. `state.get("rank")`, `state.set({ rank: "3" })`.
//
// It is the part of the address behind `#`, as `name=value&name=value`; `at` is the section in view, and a plain place
// (`#findings`) is the same as `at=findings`. Whoever made the link may have written anything: every reader of a value
// checks it, and what it cannot use is ignored. In a frame the page around it is told, so that its address holds it too.

const MAX_STATE = 10000; // letters; longer is no address of ours
const SETTLES_MS = 250; // browsers refuse an address that changes too often

const state = (() => {
  const isState = () => location.hash.includes("=");
  const place = () => (isState() ? "" : location.hash.slice(1));
  const read = () => new URLSearchParams(isState() && location.hash.length < MAX_STATE ? location.hash.slice(1) : "");
  let values = read();
  if (place()) values.set("at", place());
  /** @type {(() => void)[]} */
  const heard = [];
  let written = values.toString(), timer = 0;

  addEventListener("hashchange", () => {
    clearTimeout(timer);
    if (place()) {
      // The browser has gone there by itself; what was chosen before stays in the address.
      values.set("at", place());
      goTo();
      write(false);
      return;
    }
    values = read();
    written = values.toString();
    heard.forEach((tell) => tell());
    tellParent();
    // Going back brings the browser to where one was, an address typed in does not.
    if (history.state !== "kept") goTo();
  });

  /** @type {(name: string) => string | null} */
  const get = (name) => values.get(name);

  /** @type {(name: string) => number | null} */
  function number(name) {
    const text = values.get(name) ?? "", value = Number(text);
    return text.trim() !== "" && Number.isFinite(value) ? value : null;
  }

  // Whole numbers of at least 0, written `0.3.12`; null where it is not there or something else.
  /** @type {(name: string) => number[] | null} */
  function numbers(name) {
    const text = values.get(name);
    return text !== null && /^\d{1,9}(\.\d{1,9})*$/.test(text) ? text.split(".").map(Number) : null;
  }

  // Null and empty values leave the address. With `push` the browser's button goes back to what was before; without, the
  // address follows once nothing has changed for a moment.
  /** @type {(changed: Record<string, string | null>, options?: { push?: boolean }) => void} */
  function set(changed, { push = false } = {}) {
    for (const [name, value] of Object.entries(changed)) value ? values.set(name, value) : values.delete(name);
    if (values.toString() === written) return;
    clearTimeout(timer);
    if (push) write(true);
    else timer = setTimeout(write, SETTLES_MS, false);
  }
  function write(push) {
    written = values.toString();
    try {
      push ? history.pushState("kept", "", `#${written}`) : history.replaceState("kept", "", `#${written}`);
    } catch {
      // A page without an address of its own, in a notebook's frame, keeps nothing.
    }
    tellParent();
  }
  function tellParent() {
    if (window.parent === window) return;
    try {
      window.parent.dispatchEvent(new CustomEvent("inner-state", { detail: written }));
    } catch {
      // A frame of another origin is not told.
    }
  }
  // Shows the section that the address names.
  function goTo() {
    const id = values.get("at") ?? "";
    document.dispatchEvent(new CustomEvent("open-section", { detail: id }));
    const section = document.getElementById(id);
    if (section) section.scrollIntoView();
  }
  // Called when the address is changed by hand or by going back.
  /** @type {(tell: () => void) => void} */
  const onChange = (tell) => void heard.push(tell);
  return { get, number, numbers, set, onChange, goTo };
})();
