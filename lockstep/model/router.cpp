#include "lockstep/model/router.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lockstep::inline v0 {
namespace {

template <typename T>
std::vector<int64_t> largest_shares(const T* shares, int64_t tokens, int64_t experts,
                                    int64_t chosen) {
  std::vector<int64_t> choices;
  choices.reserve(static_cast<size_t>(tokens * chosen));
  std::vector<int64_t> best(static_cast<size_t>(chosen));
  for (int64_t token = 0; token < tokens; ++token) {
    const T* const row = shares + token * experts;
    // NaN is no order for a sort: it is less than all numbers.
    const auto is_larger = [row](int64_t a, int64_t b) {
      if (std::isnan(row[a]) || std::isnan(row[b])) return !std::isnan(row[a]);
      return row[a] > row[b];
    };
    // Insertion: there are few that are wanted.
    int64_t found = 0;
    for (int64_t expert = 0; expert < experts; ++expert) {
      int64_t at = found;
      while (at > 0 && is_larger(expert, best[static_cast<size_t>(at - 1)])) --at;
      if (at == chosen) continue;
      found = std::min(found + 1, chosen);
      for (int64_t i = found - 1; i > at; --i)
        best[static_cast<size_t>(i)] = best[static_cast<size_t>(i - 1)];
      best[static_cast<size_t>(at)] = expert;
    }
    choices.insert(choices.end(), best.begin(), best.end());
  }
  return choices;
}

}  // namespace

std::vector<int64_t> choose_experts(const float* shares, int64_t tokens, int64_t experts,
                                    int64_t chosen) {
  return largest_shares(shares, tokens, experts, chosen);
}
std::vector<int64_t> choose_experts(const double* shares, int64_t tokens, int64_t experts,
                                    int64_t chosen) {
  return largest_shares(shares, tokens, experts, chosen);
}

int64_t expert_capacity(double factor, int64_t tokens, int64_t experts, int64_t chosen) {
  if (factor == 0) return tokens;
  const double most =
      std::ceil(factor * static_cast<double>(tokens * chosen) / static_cast<double>(experts));
  return std::min(tokens, static_cast<int64_t>(std::min(most, 1e18)));
}

RoutedRows route(const std::vector<int64_t>& choices, int64_t experts, int64_t chosen,
                 int64_t capacity) {
  const int64_t tokens = static_cast<int64_t>(choices.size()) / chosen;
  RoutedRows rows;
  rows.counts.assign(static_cast<size_t>(experts), 0);
  rows.places.assign(choices.size(), -1);
  for (int64_t rank = 0; rank < chosen; ++rank) {
    for (int64_t token = 0; token < tokens; ++token) {
      const auto choice = static_cast<size_t>(token * chosen + rank);
      int64_t& count = rows.counts[static_cast<size_t>(choices[choice])];
      if (count == capacity) {
        ++rows.left_out;
        continue;
      }
      ++count;
      rows.places[choice] = 0;
    }
  }
  std::vector<int64_t> next(rows.counts.size(), 0);
  std::partial_sum(rows.counts.begin(), rows.counts.end() - 1, next.begin() + 1);
  rows.tokens.resize(choices.size() - static_cast<size_t>(rows.left_out));
  for (size_t choice = 0; choice < choices.size(); ++choice) {
    if (rows.places[choice] < 0) continue;
    const int64_t row = next[static_cast<size_t>(choices[choice])]++;
    rows.places[choice] = row;
    rows.tokens[static_cast<size_t>(row)] = static_cast<int64_t>(choice) / chosen;
  }
  return rows;
}

}  // namespace lockstep::inline v0
