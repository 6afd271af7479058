#include "lockstep/report/http_answer.h"

#include <algorithm>
#include <cctype>
#include <exception>

#include "lockstep/report/prometheus.h"

namespace lockstep::inline v0 {
namespace {

std::string http_text(std::string_view status, std::string_view media, const std::string& body,
                      std::string_view more = "") {
  std::string text = "HTTP/1.1 ";
  text.append(status).append("\r\nContent-Type: ").append(media);
  text += "\r\nContent-Length: " + std::to_string(body.size());
  text += "\r\nConnection: close\r\nX-Content-Type-Options: nosniff\r\n";
  return text.append(more).append("\r\n").append(body);
}

std::string http_error(std::string_view status, const std::string& line,
                       std::string_view more = "") {
  return http_text(status, "text/plain; charset=utf-8", line + "\n", more);
}

std::string_view http_trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

bool same_word(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

// The first line up to `end`, taken off `text`, without its end.
std::string_view next_line(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

bool is_loopback_name(std::string_view host) {
  const bool six = !host.empty() && host.front() == '[';
  const size_t end = six ? host.find(']') : host.find(':');
  if (six && end == std::string_view::npos) return false;
  const std::string_view name = six ? host.substr(0, end + 1) : host.substr(0, end);
  const bool four = name.starts_with("127.") && std::all_of(name.begin(), name.end(), [](char c) {
                      return c == '.' || (c >= '0' && c <= '9');
                    });
  return four || name == "[::1]" || same_word(name, "localhost");
}

}  // namespace

std::optional<std::string> http_answer(std::string_view received,
                                       const std::function<std::string()>& text) {
  const size_t crlf = received.find("\r\n\r\n"), lf = received.find("\n\n");
  const size_t end = std::min(crlf, lf);
  if (end == std::string_view::npos || end > kMostRequestBytes) {
    if (received.size() <= kMostRequestBytes) return std::nullopt;
    return http_error("431 Request Header Fields Too Large", "the request is too long");
  }
  std::string_view head = received.substr(0, end);
  const std::string_view line = next_line(head);
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == 0 || first == last ||
      !line.substr(last + 1).starts_with("HTTP/1."))
    return http_error("400 Bad Request", "this is no request of HTTP/1");
  while (!head.empty()) {
    const std::string_view header = next_line(head);
    const size_t colon = header.find(':');
    if (colon == std::string_view::npos || !same_word(header.substr(0, colon), "host")) continue;
    if (!is_loopback_name(http_trimmed(header.substr(colon + 1))))
      return http_error("403 Forbidden", "the Host must be localhost or a loopback address");
  }
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (target.substr(0, target.find('?')) != "/metrics")
    return http_error("404 Not Found", "there is only /metrics");
  if (line.substr(0, first) != "GET")
    return http_error("405 Method Not Allowed", "there is only GET", "Allow: GET\r\n");
  try {
    return http_text("200 OK", kPrometheusMediaType, text());
  } catch (const std::exception& error) {
    return http_error("500 Internal Server Error", error.what());
  }
}

}  // namespace lockstep::inline v0
