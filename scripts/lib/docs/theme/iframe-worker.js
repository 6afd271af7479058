// Search runs in a worker, which browsers refuse to pages that are opened as files. There the worker is a hidden frame: it has the
// same script, gets messages by postMessage, and answers through the object that made it.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const place = new URL(url, location);
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.waiting = [];
      document.body.appendChild(this.frame);
      const inner = this.frame.contentWindow;
      // Scripts of a worker are loaded one after another; each is there when the next one begins.
      inner.importScripts = (...scripts) =>
        scripts.reduce((before, script) => before.then(() => this.load(new URL(script, place))), Promise.resolve());
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.load(place).then(() => {
        const messages = this.waiting;
        this.waiting = null;
        messages.forEach((message) => this.postMessage(message));
      });
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const inner = this.frame.contentDocument;
        const script = inner.createElement("script");
        script.src = url;
        script.onload = resolve;
        script.onerror = () => reject(new Error(`${url} cannot be loaded`));
        inner.body.appendChild(script);
      });
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
