// The page's data: base64 -> gzip -> a header and columns of varints (see pack.py).

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
    trust: header.trust,
    calibration: header.calibration,
    trees: header.trees,
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
  for (let i = 0; i < values.length; i++) values[i] = values[i] % 2 ? -(values[i] + 1) / 2 : values[i] / 2;
  return values;
}

function deltas(bytes) {
  const values = unzigzag(varints(bytes));
  for (let i = 1; i < values.length; i++) values[i] += values[i - 1];
  return values;
}

// Groups of milliseconds by rank and step, NaN where a rank lacks a step; `step` is their sum.
/** @returns {Grid} */
function gridOf(head, column) {
  const cells = head.ranks.length * head.steps.length;
  const groups = {};
  const step = new Float32Array(cells);
  GROUPS.forEach((name, k) => {
    const bytes = column(`grid${k}`);
    const levels = bytes.length === cells ? bytes : varints(bytes); // all below 128: the bytes are the numbers
    const group = new Float32Array(cells);
    for (let i = 0; i < cells; i++) {
      group[i] = levels[i] ? ((levels[i] - 1) * head.quantum_ns[k]) / 1e6 : NaN;
      step[i] += group[i];
    }
    groups[name] = group;
  });
  return { ranks: head.ranks, steps: head.steps, groups, step, quantum: Math.max(...head.quantum_ns) / 1e6 };
}

// Slices with times in milliseconds.
/** @returns {Slices} */
function slicesOf(head, everyColumn) {
  const column = (name) => everyColumn(head.prefix + name);
  const unit = head.unit_ns / 1e6;
  const times = (values) => values.map((v) => v * unit);
  const what = varints(column("what"));
  return {
    step: head.step,
    ranks: head.ranks,
    span: head.span * unit,
    names: head.names,
    notes: head.notes,
    rounded: head.unit_ns,
    rank: deltas(column("rank")),
    kind: varints(column("kind")),
    start: times(deltas(column("start"))),
    dur: times(varints(column("dur"))),
    wait: times(varints(column("wait"))),
    name: varints(column("name")),
    match: deltas(column("match")),
    launch: varints(column("launch")).map((v) => v - 1),
    delay: varints(column("delay")).map((v) => (v ? ((v - 1) * head.delay_ns) / 1e6 : NaN)),
    launches: head.launches.map(([operator, shapes, module, line, stream]) => ({ operator, shapes, module, line, stream })),
    matched: { what: Array.from(what, (i) => head.what[i]), last: varints(column("last")) },
  };
}
