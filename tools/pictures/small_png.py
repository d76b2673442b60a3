"""A screenshot as a PNG of at most 256 colours: a third of the size, and a page of text looks the same."""

import base64
import struct
import zlib

import numpy as np
from tests.report.browser import Browser

# The browser reads the picture: its commonest colours, those least like them, and for every pixel the nearest of all.
_FEWER_COLOURS = """
const image = new Image();
image.src = 'data:image/png;base64,' + arguments[0];
return image.decode().then(() => {
  const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const pixels = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
  const count = new Map();
  for (const p of pixels) count.set(p, (count.get(p) ?? 0) + 1);
  const parts = (p) => [p & 255, (p >> 8) & 255, (p >> 16) & 255];
  const byCount = [...count].sort((a, b) => b[1] - a[1]).map(([p]) => p);
  const kept = byCount.slice(0, 128);
  const others = byCount.slice(128, 4000).map((p) => ({ p, own: parts(p), off: Infinity }));
  const far = ([r, g, b], [x, y, z]) => (r - x) ** 2 + (g - y) ** 2 + (b - z) ** 2;
  const keep = (p) => others.forEach((o) => (o.off = Math.min(o.off, far(o.own, parts(p)))));
  kept.forEach(keep);
  // Then, one after the other, whatever is least like those: thin lines are rare and must keep their colours.
  while (kept.length < 256 && others.some((o) => o.off > 0)) {
    const next = others.reduce((a, b) => (b.off > a.off ? b : a));
    kept.push(next.p);
    keep(next.p);
  }
  const colours = kept.map(parts), place = new Map(kept.map((p, i) => [p, i]));
  const nearest = (p) => {
    const own = parts(p);
    let best = 0, least = Infinity;
    colours.forEach((colour, i) => {
      const off = far(own, colour);
      if (off < least) [best, least] = [i, off];
    });
    place.set(p, best);
    return best;
  };
  const out = new Uint8Array(pixels.length);
  for (let i = 0; i < pixels.length; i++) out[i] = place.get(pixels[i]) ?? nearest(pixels[i]);
  let text = '';
  for (let i = 0; i < out.length; i += 8192) text += String.fromCharCode(...out.subarray(i, i + 8192));
  return [image.width, image.height, colours.flat(), btoa(text)];
});
"""


def small_png(browser: Browser, png: bytes) -> bytes:
    """Return a picture with at most 256 colours. The browser leaves its page for it."""
    browser.go("about:blank")
    width, height, colours, text = browser.run(_FEWER_COLOURS, base64.b64encode(png).decode())
    index = np.frombuffer(base64.b64decode(text), np.uint8).reshape(height, width)
    lines = np.hstack([np.zeros((height, 1), np.uint8), index]).tobytes()
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(colours)),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in chunks)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
