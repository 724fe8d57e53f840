// Follows the server, and connects again when it was gone.

/** @param {string} path @param {(message: any) => void} apply @param {(state: string) => void} say */
export const follow = (path, apply, say) => {
  const source = new EventSource(path);
  let isOver = false;
  source.onopen = () => say("Live.");
  source.onmessage = ({ data }) => apply(JSON.parse(data));
  source.addEventListener("end", () => {
    isOver = true;
    source.close();
    say("The run has ended, and with it this page's server. python -m trainer watch shows the run again.");
  });
  source.onerror = () => {
    if (isOver) return;
    say("No connection to the server of this page; trying again.");
    // Else the browser tries again by itself.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => follow(path, apply, say), 1000);
  };
};
