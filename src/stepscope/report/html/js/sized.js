// A picture drawn for the width that it has, again whenever that changes: its letters are those of the page everywhere.

const MIN_WIDTH = 300;

/** @type {(draw: (width: number) => any) => HTMLElement} */
function sized(draw) {
  const box = el("div", { class: "sized" });
  let last = 0;
  const again = () => {
    const width = Math.max(MIN_WIDTH, Math.floor(box.clientWidth));
    if (width === last || !box.clientWidth) return;
    last = width;
    box.replaceChildren(draw(width));
  };
  new ResizeObserver(again).observe(box);
  return box;
}
