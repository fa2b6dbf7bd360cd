// One shape and one colour per phase, drawn the same on canvas and in SVG. The shape alone is
// enough to tell phases apart; the colour only makes it faster.
import { h } from './dom.js';

const BOX = 'M2 0h6a2 2 0 0 1 2 2v6a2 2 0 0 1-2 2H2a2 2 0 0 1-2-2V2a2 2 0 0 1 2-2z';
const RING = 'M2.2.7h5.6a1.5 1.5 0 0 1 1.5 1.5v5.6a1.5 1.5 0 0 1-1.5 1.5H2.2A1.5 1.5 0 0 1 .7 7.8V2.2A1.5 1.5 0 0 1 2.2.7z';
export const GLYPH = {
  running: { name: 'Running', fill: BOX },
  unready: { name: 'Not ready', stroke: RING, fill: 'M3 3h4v4H3z' },
  creating: { name: 'Creating', stroke: RING, fill: 'M1 5h8v2.8A1.2 1.2 0 0 1 7.8 9H2.2A1.2 1.2 0 0 1 1 7.8z' },
  pending: { name: 'Pending', stroke: RING },
  terminating: { name: 'Terminating', stroke: RING, line: 'M2.6 7.4l4.8-4.8' },
  failed: { name: 'Failing', fill: BOX, cut: 'M3 3l4 4M7 3L3 7' },
  succeeded: { name: 'Succeeded', fill: 'M5 2.4a2.6 2.6 0 1 0 0 5.2 2.6 2.6 0 0 0 0-5.2z' },
};
for (const g of Object.values(GLYPH)) for (const k of ['fill', 'stroke', 'line', 'cut']) if (g[k]) g[k + 'P'] = new Path2D(g[k]);

export function glyph(phase, size = 10) {
  const g = GLYPH[phase] || GLYPH.pending;
  const svg = h('svg:svg', { class: 'glyph ph-' + phase, width: size, height: size, viewBox: '0 0 10 10', 'aria-hidden': 'true' });
  if (g.fill) svg.append(h('svg:path', { d: g.fill, class: 'gf' }));
  if (g.stroke) svg.append(h('svg:path', { d: g.stroke, class: 'gs' }));
  if (g.line) svg.append(h('svg:path', { d: g.line, class: 'gs' }));
  if (g.cut) svg.append(h('svg:path', { d: g.cut, class: 'gc' }));
  return svg;
}
export function drawGlyph(ctx, phase, x, y, size, color, ground) {
  const g = GLYPH[phase] || GLYPH.pending, s = size / 10;
  ctx.save(); ctx.translate(x, y); ctx.scale(s, s);
  ctx.fillStyle = color; ctx.strokeStyle = color; ctx.lineWidth = 1.4; ctx.lineCap = 'round';
  if (g.fillP) ctx.fill(g.fillP);
  if (g.strokeP) ctx.stroke(g.strokeP);
  if (g.lineP) ctx.stroke(g.lineP);
  if (g.cutP) { ctx.strokeStyle = ground; ctx.stroke(g.cutP); }
  ctx.restore();
}
const ready = (o) => (o.status?.conditions || []).find((c) => c.type === 'Ready')?.status === 'True';
export const isReady = ready;
export function phaseOf(o) {
  const st = o.status || {};
  if (o.metadata?.deletionTimestamp) return 'terminating';
  if (o.kind === 'Pod') {
    const cs = st.containerStatuses || [];
    if (st.phase === 'Succeeded') return 'succeeded';
    if (st.phase === 'Failed' || cs.some((c) => /BackOff|Error|Invalid/.test(c.state?.waiting?.reason || ''))) return 'failed';
    if (st.phase === 'Running') return cs.length && cs.every((c) => c.ready) ? 'running' : 'unready';
    return o.spec?.nodeName ? 'creating' : 'pending';
  }
  if (/^(Deployment|ReplicaSet|StatefulSet)$/.test(o.kind)) {
    const want = o.spec?.replicas ?? 1, have = st.readyReplicas || 0;
    if (want === 0) return 'succeeded';
    return have >= want && (st.updatedReplicas ?? want) >= want ? 'running' : have === 0 ? 'pending' : 'creating';
  }
  if (o.kind === 'Node') return ready(o) ? 'running' : 'failed';
  if (o.kind === 'Job') return (st.conditions || []).some((c) => c.type === 'Failed' && c.status === 'True') ? 'failed' : st.completionTime ? 'succeeded' : 'creating';
  if (o.kind === 'Event') return o.type === 'Warning' ? 'failed' : 'succeeded';
  return null;
}
export function statusText(o) {
  const st = o.status || {};
  if (o.metadata?.deletionTimestamp) return 'Terminating';
  if (o.kind === 'Pod') {
    const waits = (st.containerStatuses || []).find((c) => c.state?.waiting?.reason);
    if (waits) return waits.state.waiting.reason;
    return st.phase === 'Succeeded' ? 'Completed' : st.phase === 'Failed' && st.reason ? st.reason : st.phase || 'Pending';
  }
  if (/^(Deployment|ReplicaSet|StatefulSet)$/.test(o.kind)) return `${st.readyReplicas || 0} of ${o.spec?.replicas ?? 1} ready`;
  if (o.kind === 'Node') return ready(o) ? 'Ready' : 'Not ready';
  return typeof st.phase === 'string' ? st.phase : '';
}
