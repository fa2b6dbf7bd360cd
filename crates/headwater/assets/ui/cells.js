// Cells of the server's tables: which column is a status, which is a time, and what they mean.
import { age } from './dom.js';

// "3d4h" and "2m30s" as milliseconds; null for other text.
const UNIT = { y: 31536e6, d: 864e5, h: 36e5, m: 6e4, s: 1e3 };
export function duration(text) {
  if (typeof text !== 'string' || !/^(\d+[ydhms])+$/.test(text)) return null;
  let sum = 0;
  for (const [, n, u] of text.matchAll(/(\d+)([ydhms])/g)) sum += n * UNIT[u];
  return sum;
}
const TIMES = new Set(['Age', 'Last Seen', 'First Seen', 'LastSeen']);

// The column of a table as the grid needs it.
export function column(c, i) {
  const name = c.name, ticks = TIMES.has(name);
  const col = { name, priority: c.priority || 0, raw: i, get: (r) => { const v = r.cells[i]; return v === null || v === undefined ? '' : String(v); } };
  if (ticks) {
    const at = (r) => { // the moment that the cell counts from
      if (name === 'Age' && r.metadata.creationTimestamp) return Date.parse(r.metadata.creationTimestamp);
      const d = duration(r.cells[i]);
      return d === null ? null : r.got - d;
    };
    const text = col.get;
    col.tick = true; col.num = true;
    col.get = (r) => { const t = at(r); return t === null ? text(r) : age(Date.now() - t); };
    col.sort = (r) => { const t = at(r); return t === null ? Infinity : -t; };
  } else if (c.type === 'integer' || c.type === 'number') {
    col.num = true; col.sort = (r) => { const v = Number(r.cells[i]); return Number.isNaN(v) ? -Infinity : v; };
  } else col.sort = (r) => natural(col.get(r));
  return col;
}
// "4/10" and "12 (3m ago)" sort by their first number, other text as it is.
const natural = (t) => (/^\d/.test(t) ? t.replace(/\d+/g, (d) => d.padStart(12, '0')) : t);

const GOOD = /^(Running|Ready|Active|Bound|Available|Approved|Approved,Issued|True|Online|Normal|Healthy|Succeeded|Established)$/;
const DONE = /^(Completed?|Succeeded|Released|Normal)$/;
const BAD = /Error|BackOff|Failed|Invalid|NotReady|Unknown|Lost|Warning|Offline|OOMKilled|Evicted|Denied|ErrImage|False/;
const WAIT = /Pending|Init:|PodInitializing|Updating|Progressing|Suspended|Waiting/;
const ratio = (t) => { const m = /^(\d+)\/(\d+)$/.exec(t); return m ? [+m[1], +m[2]] : null; };

// The column that tells how an object is, if a kind has one: its index and the phase of a row.
export function status(kind, columns) {
  const at = (n) => columns.findIndex((c) => c.name.toLowerCase() === n);
  const ready = at('ready');
  let i = at('status');
  if (i < 0) i = at('phase');
  if (kind === 'Event') i = at('type');
  if (i >= 0) {
    return { at: i, phase: (r) => {
      const t = String(r.cells[i]);
      if (r.metadata.deletionTimestamp || t === 'Terminating') return 'terminating';
      if (t === 'ContainerCreating') return 'creating';
      if (kind === 'Event') return t === 'Warning' ? 'failed' : 'succeeded';
      if (BAD.test(t)) return 'failed';
      if (DONE.test(t)) return 'succeeded';
      if (WAIT.test(t)) return 'pending';
      const n = ready >= 0 ? ratio(String(r.cells[ready])) : null;
      if (n && n[0] < n[1]) return kind === 'Pod' ? 'unready' : 'creating';
      return GOOD.test(t) ? 'running' : 'succeeded';
    } };
  }
  if (ready >= 0) {
    return { at: ready, phase: (r) => {
      const n = ratio(String(r.cells[ready]));
      if (!n) return 'running';
      return n[1] === 0 ? 'succeeded' : n[0] >= n[1] ? 'running' : n[0] === 0 ? 'pending' : 'creating';
    } };
  }
  return null;
}
