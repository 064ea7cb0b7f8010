#pragma once

/// \file
/// Ctrl-C as a request: a program checks between two steps whether to stop, saves and ends. A
/// second Ctrl-C ends the program immediately.

#include <csignal>

namespace examples {

inline volatile std::sig_atomic_t interrupt_signal = 0;

/// Makes SIGINT and SIGTERM requests to stop.
inline void catch_interrupts() {
  const auto remember = [](int signal) {
    interrupt_signal = signal;
    std::signal(signal, SIG_DFL);
  };
  std::signal(SIGINT, remember);
  std::signal(SIGTERM, remember);
}

/// Makes SIGINT and SIGTERM end the program immediately, once everything is saved.
inline void release_interrupts() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

inline bool interrupted() { return interrupt_signal != 0; }
/// Exit status that a shell expects of a program that a signal ended.
inline int interrupted_status() { return 128 + interrupt_signal; }

}  // namespace examples
