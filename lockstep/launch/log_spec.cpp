#include "lockstep/launch/log_spec.h"

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::launch {

RedirectMap parse_redirects(const std::string& text) {
  const auto refuse = [&] {
    return InvalidArgument(
        "'" + text +
        "' does not say which streams: expected 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or "
        "local ranks with these, such as 0:3,1:1");
  };
  if (const auto all = parse_int(text, 0, 3)) return {{-1, static_cast<Redirect>(*all)}};
  RedirectMap map;
  std::string_view rest = text;
  while (true) {
    const std::string_view item = rest.substr(0, rest.find(','));
    const auto colon = item.find(':');
    if (colon == std::string_view::npos) throw refuse();
    const auto rank = parse_int(item.substr(0, colon), 0, 1 << 20);
    const auto streams = parse_int(item.substr(colon + 1), 0, 3);
    if (!rank || !streams) throw refuse();
    map[static_cast<int>(*rank)] = static_cast<Redirect>(*streams);
    if (item.size() == rest.size()) return map;
    rest.remove_prefix(item.size() + 1);
  }
}

Redirect redirect_of(const RedirectMap& map, int local_rank) {
  if (const auto it = map.find(local_rank); it != map.end()) return it->second;
  const auto all = map.find(-1);
  return all == map.end() ? Redirect::kNone : all->second;
}

bool has_stdout(Redirect redirect) {
  return (static_cast<int>(redirect) & 1) != 0;
}
bool has_stderr(Redirect redirect) {
  return (static_cast<int>(redirect) & 2) != 0;
}

}  // namespace lockstep::inline v0::launch
