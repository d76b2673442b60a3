// The page's data: base64 -> gzip -> a header and columns of varints (see page_data.py).

function bytesOfBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text);
  const out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}

/** @type {(text: string | null) => Promise<PageData>} */
async function unpack(text) {
  const stream = new Blob([bytesOfBase64(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const column = (name) => {
    const [at, size] = header.columns[name];
    return new Uint8Array(buffer, 4 + length + at, size);
  };
  return {
    report: header.report,
    sentence: header.sentence,
    trust: header.trust,
    grid: header.grid && gridOf(header.grid, column),
    pictures: header.pictures ?? {},
    slices: header.slices && slicesOf(header.slices, column),
    more: (header.more ?? []).map((head) => ({ step: head.step, read: () => slicesOf(head, column) })),
  };
}

// Whole numbers of at least 0. Beyond 2^31 plain arithmetic, because shifts end there.
function varints(bytes, most = bytes.length) {
  const out = new Float64Array(most);
  let n = 0;
  for (let i = 0; i < bytes.length; n++) {
    let byte = bytes[i++], value = byte & 127, scale = 128;
    while (byte > 127) {
      byte = bytes[i++];
      value += (byte & 127) * scale;
      scale *= 128;
    }
    out[n] = value;
  }
  return out.subarray(0, n);
}

function unzigzag(values) {
  for (let i = 0; i < values.length; i++) {
    const half = Math.floor(values[i] / 2);
    values[i] = 2 * half === values[i] ? half : -half - 1;
  }
  return values;
}

function deltas(bytes) {
  const values = unzigzag(varints(bytes));
  for (let i = 1; i < values.length; i++) values[i] += values[i - 1];
  return values;
}

function scaled(values, unit) {
  for (let i = 0; i < values.length; i++) values[i] *= unit;
  return values;
}

// Groups of milliseconds by rank and step, NaN where a rank lacks a step; `step` is their sum. `used` are the
// groups that any time is in: a million cells are gone through as seldom as possible.
/** @returns {Grid} */
function gridOf(head, column) {
  const cells = head.ranks.length * head.steps.length;
  const groups = {}, used = [];
  const step = new Float32Array(cells);
  GROUPS.forEach((name, k) => {
    const bytes = column(`grid${k}`);
    // All below 128: the bytes are the numbers, and few enough to be looked up.
    const group = bytes.length === cells ? lookedUp(bytes, head.quantum_ns[k] / 1e6) : leveled(varints(bytes), head.quantum_ns[k] / 1e6);
    for (let i = 0; i < cells; i++) step[i] += group[i];
    groups[name] = group;
    if (isAnyAbove(group, 0)) used.push(name);
  });
  return { ranks: head.ranks, steps: head.steps, groups, step, used, quantum: Math.max(...head.quantum_ns) / 1e6 };
}

// Level 0 is a cell that was not recorded, level n + 1 is n times the quantum.
function leveled(levels, quantum) {
  const out = new Float32Array(levels.length);
  for (let i = 0; i < out.length; i++) out[i] = levels[i] ? (levels[i] - 1) * quantum : NaN;
  return out;
}

function lookedUp(bytes, quantum) {
  const values = leveled(Uint8Array.from({ length: 128 }, (_, level) => level), quantum);
  const out = new Float32Array(bytes.length);
  for (let i = 0; i < out.length; i++) out[i] = values[bytes[i]];
  return out;
}

function isAnyAbove(values, least) {
  for (let i = 0; i < values.length; i++) if (values[i] > least) return true;
  return false;
}

// Slices with times in milliseconds.
/** @returns {Slices} */
function slicesOf(head, everyColumn) {
  const column = (name) => everyColumn(head.prefix + name);
  const unit = head.unit_ns / 1e6;
  const what = varints(column("what"));
  return {
    step: head.step,
    ranks: head.ranks,
    span: head.span * unit,
    origin: head.origin_ms ?? 0,
    names: head.names,
    notes: head.notes,
    rounded: head.unit_ns,
    rank: deltas(column("rank")),
    kind: varints(column("kind")),
    start: scaled(deltas(column("start")), unit),
    dur: scaled(varints(column("dur")), unit),
    wait: scaled(varints(column("wait")), unit),
    name: varints(column("name")),
    match: deltas(column("match")),
    launch: varints(column("launch")).map((v) => v - 1),
    delay: varints(column("delay")).map((v) => (v ? ((v - 1) * head.delay_ns) / 1e6 : NaN)),
    launches: head.launches.map(([operator, shapes, module, line, stream]) => ({ operator, shapes, module, line, stream })),
    matched: { what: Array.from(what, (i) => head.what[i]), last: varints(column("last")) },
  };
}
