// A search for `--eps` is one for `eps`: to the index, a leading hyphen means "without".
document.addEventListener("input", event => {
  const box = event.target;
  if (box.dataset.mdComponent === "search-query") {
    box.value = box.value.replace(/(^|\s)-+(?=[a-z])/gi, "$1");
  }
}, true);
