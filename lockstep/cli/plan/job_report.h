// A planned training job for people, as JSON, and as a picture. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lockstep/cli/plan/job.h"

namespace lockstep::inline v0::cli {

// Tables and sentences in lines of at most `columns` columns: a search's best layouts, a line each,
// and why the others lose; or one layout's memory and time, part by part; and what if. A table
// loses its least important columns where it does not fit.
std::string text_of(const JobPlan& job, size_t columns = 120);

// "fits: data=8,tensor=2 takes 62.3 GiB of 79.1 GiB, ...": --fits.
std::string fits_line(const JobPlan& job);

// docs/planning.md lists the fields.
nlohmann::ordered_json job_json(const JobPlan& job);

// The best layouts' memory and time as bars, by part, and the schedule of the best one's pipeline.
// A whole SVG file.
std::string job_svg(const JobPlan& job);

// "6,738,415,616".
std::string grouped(int64_t number);
// "8.03 G", "124 M", "512".
std::string count_text(double number);
// "62.3 GiB", "512 MiB".
std::string bytes_text(double bytes);
// "3.21 s", "12.4 ms".
std::string seconds_text(double seconds);

}  // namespace lockstep::inline v0::cli
