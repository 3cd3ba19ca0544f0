// Rules in which the packages that make models differ (abele, poptorch). A package sets the fields; model/ obeys them.
#pragma once

#include <cstdint>
#include <vector>

#include "base/type.h"
#include "compile/program_options.h"
#include "options/store.h"

namespace abele::calls {

/// The defaults are Abele's own rules.
struct Policy {
  bool many_programs = true;            // one for each kind of inputs; else one for each order of keys, whose session
                                        // refuses others (E0704)
  bool many_structures = false;         // inputs of another structure are another kind; else they are refused (E0704)
  bool torch_updates = true;            // where torch and PopTorch compute an update differently, as torch does
  bool shares_weights = true;           // devices work in the model's own memory (shareWeights says otherwise),
                                        // and trainings follow each other; else weights move by copies only
  bool short_pipelines = true;          // pipelines may have fewer micro-batches than stages
  bool wide_numbers = true;             // else int64 and float64 are narrowed to 32 bits on their way in and out
  bool repeats_constants = true;        // a result that no input changes has the rows of all micro-batches, else of one
  bool checks_captures = true;          // the same call twice must give the same program (E0101)
  std::vector<DType> input_types = {};  // that devices take; empty: all
  int64_t most_devices = 0;             // that can be reserved, in powers of two; 0: a program has as many as it uses
};

/// What the options mean for a program of this policy. Throws as programOptions() of compile/from_options.h.
compile::ProgramOptions programOptions(Options::Values values, bool training, const Policy& policy);

}  // namespace abele::calls
