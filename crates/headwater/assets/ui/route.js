// Addresses inside the page.
export const go = (hash) => { location.hash = hash; };
export const hrefOf = (id, key) => '#/o/' + id + '/' + key.split('/').map(encodeURIComponent).join('/');
