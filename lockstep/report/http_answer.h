// The answers of a /metrics endpoint to requests of HTTP/1.0 or 1.1. Pure.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::inline v0 {

// The most bytes of a request, up to the blank line after its headers.
inline constexpr size_t kMostRequestBytes = 8192;

// The whole answer to the bytes that have arrived on a connection; nullopt: the request is not
// complete yet. GET /metrics gives `text()`, with or without a query; whatever else there is gives
// an error, as does a Host that is neither localhost nor a loopback address: a page in a browser,
// whose own name leads to this host, is not to read the metrics. `text` is called at most once.
std::optional<std::string> http_answer(std::string_view received,
                                       const std::function<std::string()>& text);

}  // namespace lockstep::inline v0
