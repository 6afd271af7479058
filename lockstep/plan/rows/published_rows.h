// Published figures of training runs as layouts, to hold estimate() against. Data; pure.
//
// The few constants of known_stacks() were fitted to the rows that say so, a quarter at most; the others are
// predicted. published_rows_test.cpp prints every row's error.
#pragma once

#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/plan/estimate/estimate.h"

namespace lockstep::inline v0::plan {

// A run that was published.
struct PublishedRow {
  std::string source = {};  // "arXiv:2104.04473 table 1"
  std::string label = {};   // what tells it from the others of its source: "GPT 18.4B, 256 GPUs"
  ModelShape model = {};
  Layout layout = {};
  std::string machine = {};    // known_machine()
  std::string stack = {};      // known_stack()
  double step = 0;             // seconds; 0: not published
  double memory = 0;           // bytes of the fullest rank; 0: not published
  bool fitted = false;         // a constant of the stack was fitted to its time
  bool memory_fitted = false;  // ... to its memory
  std::string assumed = {};    // what its source does not say and was assumed here
};
// All of them, source by source.
LOCKSTEP_API const std::vector<PublishedRow>& published_rows();

// A row with its estimate.
struct HeldRow {
  const PublishedRow* row = nullptr;
  Estimate estimate = {};
  // Errors relative to published figures: 0.05 if 5 % too much was predicted; 0 if there are none.
  double time_error = 0, memory_error = 0;
};
LOCKSTEP_API std::vector<HeldRow> hold(const std::vector<PublishedRow>& rows);

// How well rows are met.
struct Agreement {
  int rows = 0;
  double median = 0;  // of the errors' sizes
  double worst = 0;
  double within_5 = 0, within_10 = 0, within_15 = 0;  // shares of the rows
};
LOCKSTEP_API Agreement agreement_of(std::vector<double> errors);

// Pairs of rows of one source, model and machine whose published tokens/s of a rank differ by more than 5 %, and how
// many of them estimates put into the same order.
struct Order {
  int pairs = 0, right = 0;
};
LOCKSTEP_API Order order_of(const std::vector<HeldRow>& rows);

}  // namespace lockstep::inline v0::plan
