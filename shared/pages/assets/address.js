// A page's state in the fragment of its address, which browsers do not send to servers.

/** @returns {any} the state in the address, or null where there is none or it is damaged */
export const readAddress = () => {
  try {
    return JSON.parse(decodeURIComponent(location.hash.slice(1)));
  } catch {
    return null;
  }
};

/**
 * Put the state into the address, without a new entry in the history.
 * @param {any} state
 */
export const writeAddress = (state) => history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(state))}`);
