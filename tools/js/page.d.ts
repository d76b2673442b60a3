// Shapes that the pages' scripts share. Only the type checker reads this; nothing of it is in a page.

/** Milliseconds by rank and step, row by row; NaN where a rank lacks a step. */
interface Grid {
  ranks: number[];
  steps: number[];
  groups: Record<string, Float32Array>;
  step: Float32Array;
  /** groups that any time is in */
  used: string[];
  /** step time without waiting and communication, once asked for */
  own?: Float32Array;
  quantum: number;
}

/** What ran during one step on all ranks, in columns; times in milliseconds. */
interface Slices {
  /** its number; "3 to 7" for several */
  step: number | string | null;
  ranks: number[];
  span: number;
  /** when it began, against other steps */
  origin: number;
  names: string[];
  notes: string[];
  rounded: number;
  rank: Float64Array;
  kind: Float64Array;
  start: Float64Array;
  dur: Float64Array;
  wait: Float64Array;
  name: Float64Array;
  match: Float64Array;
  /** index into `launches`, -1 for none */
  launch: Float64Array;
  /** from the launching call to the start, NaN where unknown */
  delay: Float64Array;
  launches: { operator: string | null; shapes: string | null; module: string | null; line: string | null; stream: number | null }[];
  matched: { what: string[]; last: Float64Array };
}

/** A line or module with all that is inside it, milliseconds per step; what is missing is 0. */
interface CodeNode {
  name: string;
  label: string;
  host?: number;
  device?: number;
  comm?: number;
  exposed?: number;
  backward_host?: number;
  backward_device?: number;
  children?: CodeNode[];
}

/** A node with its place in the tree. */
interface Placed {
  node: CodeNode;
  parent: Placed | null;
  depth: number;
  children: Placed[];
  box?: HTMLElement;
}

interface PageData {
  report: any;
  sentence: string;
  trust: string[];
  grid: Grid | null;
  slices: Slices | null;
  /** other steps, read when they are asked for */
  more: { step: number | null; read(): Slices }[];
  /** what the other pictures show, by name */
  pictures: Record<string, any>;
}

/** One shape of a picture, see report/drawing.py. */
interface DrawnShape {
  is: "rect" | "dot" | "path" | "area" | "text";
  tip?: string[];
  opacity?: number;
  [more: string]: any;
}

/** A picture made by report/pictures.py. */
interface Drawing {
  title: string;
  size: [number, number];
  label: string;
  shapes: DrawnShape[];
  legend: [string, string][];
  notes: string[];
  table: { columns: Column[]; rows: any[] } | null;
}

/** One column of a table that sorts. */
interface Column {
  title: string;
  key?: any;
  unit?: string;
  show?(row: any, value: any): string;
  link?(row: any): string;
  below?(row: any): string | null;
  bar?: boolean;
  some?: boolean;
}

interface TableOptions {
  sort?: any;
  most?: number;
  filter?: boolean;
}

/** What of a step a finding is about. */
interface Focus {
  rank: number | null;
  /** in the middle of the picture */
  row: number;
  marks: (slice: number) => boolean;
  from: number;
  to: number;
  said: string;
}

/** Slices of one kind that do not overlap. */
interface Series {
  kind: number;
  start: Float64Array;
  end: Float64Array;
}

interface Lane {
  from: number;
  to: number;
  series: Series[];
  until?: Float64Array;
}

interface Row {
  rank: number;
  index: number;
  lanes: Lane[];
}

/** What the timeline shows. */
interface View {
  t0: number;
  t1: number;
  top: number;
  width: number;
  height: number;
  lanes: number[];
  laneHeight: number;
  marks: ((slice: number) => boolean) | null;
  match: number | null;
  cursor: number | null;
  rank: number | null;
  arrows: boolean;
  /** the moments between which sums are shown */
  range: number[] | null;
}

type Rgb = [number, number, number];

interface DocumentEventMap {
  "show-rank": CustomEvent<number>;
  "show-step": CustomEvent<number>;
  "show-finding": CustomEvent<any>;
  "open-section": CustomEvent<string>;
  "show-rows": CustomEvent<[string, string]>;
  "show-cell": CustomEvent<{ metric: string; rank: number; step: number }>;
}

/** Names of parts, losses, slices and causes, from `contract/names.py`. */
declare const NAMES: Record<"parts" | "groups" | "kinds" | "causes" | "path" | "energy", Record<string, string>>;
