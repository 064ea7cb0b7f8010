// GoogleTest with the containers of libstdc++'s debug mode, for programs that have them too.
#include <src/gtest-all.cc>
