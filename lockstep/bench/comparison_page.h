// The comparison as pictures, and as one HTML page that contains them. Pure.
#pragma once

#include <string>

#include "lockstep/bench/comparison.h"
#include "lockstep/report/html_page.h"

namespace lockstep::inline v0::bench {

// SVG in both languages. Failed methods are left out.
Words time_picture(const Comparison& comparison);     // minutes of each method
Words loss_picture(const Comparison& comparison);     // means over a few steps, against samples
Words parts_picture(const Comparison& comparison);    // the parts of a step's time
Words scaling_picture(const Comparison& comparison);  // time for the same samples, against ranks

// Returns comparison.html.
std::string comparison_page(const Comparison& comparison);

}  // namespace lockstep::inline v0::bench
