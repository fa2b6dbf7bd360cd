// What the page keeps of an object: the fields that a view shows. Runs in the worker.
const pickMeta = (m) => ({
  name: m.name, namespace: m.namespace, uid: m.uid, resourceVersion: m.resourceVersion, labels: m.labels,
  creationTimestamp: m.creationTimestamp, deletionTimestamp: m.deletionTimestamp, ownerReferences: m.ownerReferences,
});
const images = (t) => (t?.spec?.containers || []).map((c) => ({ image: c.image, resources: c.resources?.requests ? { requests: c.resources.requests } : undefined }));

const SLIM = {
  Pod: (o) => ({
    kind: 'Pod', metadata: pickMeta(o.metadata), spec: { nodeName: o.spec?.nodeName, containers: images(o) },
    status: { phase: o.status?.phase, reason: o.status?.reason, containerStatuses: (o.status?.containerStatuses || []).map((c) => ({ ready: c.ready, restartCount: c.restartCount, state: c.state })) },
  }),
  Node: (o) => ({
    kind: 'Node', metadata: pickMeta(o.metadata), spec: { unschedulable: o.spec?.unschedulable },
    status: { conditions: (o.status?.conditions || []).map((c) => ({ type: c.type, status: c.status })), allocatable: o.status?.allocatable || o.status?.capacity || {} },
  }),
  Deployment: (o) => ({ kind: 'Deployment', metadata: pickMeta(o.metadata), spec: { replicas: o.spec?.replicas ?? 1, template: { spec: { containers: images(o.spec?.template) } } }, status: o.status || {} }),
  ReplicaSet: (o) => ({ kind: 'ReplicaSet', metadata: { ...pickMeta(o.metadata), revision: o.metadata.annotations?.['deployment.kubernetes.io/revision'] }, spec: { replicas: o.spec?.replicas ?? 1, template: { spec: { containers: images(o.spec?.template) } } }, status: o.status || {} }),
  Event: (o) => ({
    kind: 'Event', metadata: pickMeta(o.metadata), type: o.type, reason: o.reason, message: o.message || o.note || '', count: o.series?.count || o.count || 1,
    lastTimestamp: o.series?.lastObservedTime || o.lastTimestamp || o.eventTime || o.metadata.creationTimestamp, involvedObject: o.involvedObject || {},
  }),
};
export const slim = (kind, o) => (SLIM[kind] ? SLIM[kind](o) : o);

// Values of Secrets never leave the worker: it passes on how long they are.
const hidden = (text) => `hidden, ${Math.floor((text.length * 3) / 4) - (text.endsWith('==') ? 2 : text.endsWith('=') ? 1 : 0)} bytes`;
const LAST_APPLIED = 'kubectl.kubernetes.io/last-applied-configuration';
export function mask(o) {
  if (o?.kind !== 'Secret') return o;
  const out = { ...o };
  if (o.data) out.data = Object.fromEntries(Object.entries(o.data).map(([k, v]) => [k, hidden(String(v))]));
  if (o.metadata?.annotations?.[LAST_APPLIED]) out.metadata = { ...o.metadata, annotations: { ...o.metadata.annotations, [LAST_APPLIED]: 'hidden' } };
  return out;
}
