// Objects as lines of YAML, and the difference of two of them.
const plain = (v) => (v === null ? 'null' : typeof v === 'string' ? (v === '' || /^[\d.+-]+$|^(true|false|null|yes|no|on|off)$|[:#{}[\],&*!|>'"%@`]( |$)|^[ \-?]|^[{[&*!|>'"%@`]/.test(v) ? JSON.stringify(v) : v) : String(v));
export function lines(o, folded) {
  const out = [];
  const put = (ind, lead, key, v, path) => {
    const pre = ' '.repeat(ind) + lead;
    if (path === 'metadata.managedFields' && folded && Array.isArray(v)) { out.push({ pre, key, val: '', fold: `${v.length} writers`, path, s: pre + key }); return; }
    if (v !== null && typeof v === 'object' && Object.keys(v).length) {
      if (key !== null) { out.push({ pre, key, val: '', path, s: pre + key }); walk(v, ind + (Array.isArray(v) ? 0 : 2) + (lead ? 2 : 0), path); } else walk(v, ind, path, lead);
    } else {
      const val = v !== null && typeof v === 'object' ? (Array.isArray(v) ? '[]' : '{}') : plain(v);
      out.push({ pre, key, val, t: v === null || typeof v === 'object' ? 'n' : typeof v, path, s: pre + key + ':' + val });
    }
  };
  const walk = (v, ind, path, lead = '') => {
    if (Array.isArray(v)) v.forEach((x, i) => put(ind, '- ', null, x, `${path}[${i}]`));
    else Object.entries(v).forEach(([k, x], i) => { if (x !== undefined) { const first = lead && i === 0; put(first ? ind : ind + (lead ? 2 : 0), first ? lead : '', k, x, path ? path + '.' + k : k); } });
  };
  walk(o, 0, '');
  return out;
}
export function diff(a, b) { // longest common subsequence; objects are a few hundred lines
  let s = 0; while (s < a.length && s < b.length && a[s].s === b[s].s) s++;
  let ea = a.length, eb = b.length; while (ea > s && eb > s && a[ea - 1].s === b[eb - 1].s) { ea--; eb--; }
  const n = ea - s, m = eb - s, ops = [];
  for (let i = 0; i < s; i++) ops.push([' ', b[i], i]);
  if (n * m > 4e6) { // too much in common to look for: the middle is replaced
    for (let i = s; i < ea; i++) ops.push(['-', a[i]]);
    for (let j = s; j < eb; j++) ops.push(['+', b[j]]);
    for (let q = eb; q < b.length; q++) ops.push([' ', b[q]]);
    return ops;
  }
  const L = Array.from({ length: n + 1 }, () => new Uint16Array(m + 1));
  for (let i = n - 1; i >= 0; i--) for (let j = m - 1; j >= 0; j--) L[i][j] = a[s + i].s === b[s + j].s ? L[i + 1][j + 1] + 1 : Math.max(L[i + 1][j], L[i][j + 1]);
  let i = 0, j = 0;
  while (i < n || j < m) {
    if (i < n && j < m && a[s + i].s === b[s + j].s) { ops.push([' ', b[s + j]]); i++; j++; } else if (i < n && (j >= m || L[i + 1][j] >= L[i][j + 1])) ops.push(['-', a[s + i++]]); else ops.push(['+', b[s + j++]]);
  }
  for (let q = eb; q < b.length; q++) ops.push([' ', b[q]]);
  return ops;
}
// A run of removed lines followed by as many new ones at the same paths reads best line by line.
export function pair(ops) {
  for (let i = 0; i < ops.length; i++) {
    if (ops[i][0] !== '-') continue;
    let m = i; while (ops[m]?.[0] === '-') m++;
    let e = m; while (ops[e]?.[0] === '+') e++;
    const n = m - i;
    if (e - m === n && n > 1 && ops.slice(i, m).every((x, q) => x[1].path === ops[m + q][1].path)) ops.splice(i, 2 * n, ...ops.slice(i, m).flatMap((x, q) => [x, ops[m + q]]));
    i = e - 1;
  }
}
