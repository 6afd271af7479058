// The decisions of a router about a pass's tokens, from given shares: which experts each token chooses, which of
// these choices an expert leaves out, and where each is in the rows that experts compute. Pure, no tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The `chosen` largest of each token's shares, largest first: [tokens * chosen] numbers of experts. `shares` are
// [tokens, experts], row by row. Among equals the lower number comes first; what is not a number comes last.
LOCKSTEP_API std::vector<int64_t> choose_experts(const float* shares, int64_t tokens,
                                                 int64_t experts, int64_t chosen);
LOCKSTEP_API std::vector<int64_t> choose_experts(const double* shares, int64_t tokens,
                                                 int64_t experts, int64_t chosen);

// factor * tokens * chosen / experts, rounded up; no limit (the number of tokens) for factor 0.
LOCKSTEP_API int64_t expert_capacity(double factor, int64_t tokens, int64_t experts,
                                     int64_t chosen);

// Rows sorted by expert, and for each expert by token: so the order is that of one process wherever tokens of
// several ranks are put together in the order of the ranks.
struct RoutedRows {
  std::vector<int64_t> counts;  // [experts]: rows of each
  std::vector<int64_t> tokens;  // [rows]: whose they are
  std::vector<int64_t> places;  // [tokens * chosen]: the row of each choice; -1: left out
  int64_t left_out = 0;
};
// Routes the choices of choose_experts(). An expert takes `capacity` of them at most: all tokens'
// first choices in the order of tokens, then all second ones, and so on.
LOCKSTEP_API RoutedRows route(const std::vector<int64_t>& choices, int64_t experts, int64_t chosen,
                              int64_t capacity);

}  // namespace lockstep::inline v0
